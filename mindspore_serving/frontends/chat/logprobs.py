"""Log-probabilities of tokens in the two forms clients read: the chat's and the older one of
completions.
"""

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from mindspore_serving.core.llm_messages import GeneratedToken

LEAST = -9999.0  # "very unlikely"


def of_chat(tokens: Iterable[GeneratedToken]) -> dict[str, Any]:
    """`logprobs` of a choice of a chat."""
    content = [
        {**_entry(token), "top_logprobs": [_entry(other) for other in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(token: GeneratedToken) -> dict[str, Any]:
    logprob = LEAST if token.logprob is None else token.logprob
    return {"token": token.text, "logprob": logprob, "bytes": list(token.data)}


def name_of(token: GeneratedToken) -> str:
    """A text of its own for every token: one that is part of a character shows its bytes."""
    try:
        return token.data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.data)


class CompletionLogprobs:
    """`logprobs` of the choices of a completion; follows how far the text is.

    Args:
        shows_special: whether the text has the special tokens.
        start: characters before the first token.
    """

    def __init__(self, *, shows_special: bool = False, start: int = 0) -> None:
        self._shows_special = shows_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = start

    def take(self, tokens: Iterable[GeneratedToken]) -> dict[str, Any]:
        """The next tokens."""
        names, logprobs, tops, offsets = [], [], [], []
        for token in tokens:
            names.append(name_of(token))
            logprobs.append(token.logprob)
            tops.append(_top(token))
            offsets.append(self._offset)
            if self._shows_special or not token.is_special:
                self._offset += len(self._decoder.decode(token.data))
        return {
            "tokens": names,
            "token_logprobs": logprobs,
            "top_logprobs": tops,
            "text_offset": offsets,
        }


def _top(token: GeneratedToken) -> dict[str, float] | None:
    """The likeliest and the token's own, by name."""
    if token.logprob is None:
        return None
    found: dict[str, float] = {}
    for one in (*token.top, token):
        found.setdefault(name_of(one), LEAST if one.logprob is None else one.logprob)
    return found


def of_prompt(tokens: Sequence[GeneratedToken], count: int) -> list[dict[str, Any] | None]:
    """`prompt_logprobs` as vLLM has them: for each token of the prompt its own and the `count`
    likeliest, by id; None for the first, which follows nothing.
    """
    return [None if token.logprob is None else _by_id(token, count) for token in tokens]


def _by_id(token: GeneratedToken, count: int) -> dict[str, Any]:
    found = {str(one.id): _ranked(one, rank) for rank, one in enumerate(token.top[:count], 1)}
    rank = next((place for place, one in enumerate(token.top, 1) if one.id == token.id), None)
    found.setdefault(str(token.id), _ranked(token, rank))
    return found


def _ranked(token: GeneratedToken, rank: int | None) -> dict[str, Any]:
    return {"logprob": token.logprob, "rank": rank, "decoded_token": token.text}


def joined(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Those of several runs of tokens of one choice as one."""
    whole = CompletionLogprobs().take(())
    for part in parts:
        for name, entries in whole.items():
            entries.extend(part[name])
    return whole
