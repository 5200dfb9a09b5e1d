"""Log-probabilities of tokens in OpenAI's formats: that of chats, and the older of completions."""

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from mindspore_serving.core.llm_messages import GeneratedToken

MIN_LOGPROB = -9999.0  # OpenAI's value for a very unlikely token


def to_chat_logprobs(tokens: Iterable[GeneratedToken]) -> dict[str, Any]:
    """Return the `logprobs` of a choice of a chat."""
    content = [
        {**_entry(token), "top_logprobs": [_entry(other) for other in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(token: GeneratedToken) -> dict[str, Any]:
    logprob = MIN_LOGPROB if token.logprob is None else token.logprob
    return {"token": token.text, "logprob": logprob, "bytes": list(token.data)}


def unique_text(token: GeneratedToken) -> str:
    """Return a text that is unique to the token: part of a character is shown as its bytes."""
    try:
        return token.data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.data)


class CompletionLogprobs:
    """Builds the `logprobs` of a completion's choice, tracking the offset in the text.

    Args:
        shows_special: whether the text has the special tokens.
        start: characters before the first token.
    """

    def __init__(self, *, shows_special: bool = False, start: int = 0) -> None:
        self._shows_special = shows_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = start

    def take(self, tokens: Iterable[GeneratedToken]) -> dict[str, Any]:
        """Return the entries of the next tokens."""
        names, logprobs, tops, offsets = [], [], [], []
        for token in tokens:
            names.append(unique_text(token))
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
    """Return the log-probabilities of the likeliest tokens and of the token itself, by name."""
    if token.logprob is None:
        return None
    logprobs: dict[str, float] = {}
    for candidate in (*token.top, token):
        logprob = MIN_LOGPROB if candidate.logprob is None else candidate.logprob
        logprobs.setdefault(unique_text(candidate), logprob)
    return logprobs


def to_prompt_logprobs(tokens: Sequence[GeneratedToken], count: int) -> list[dict[str, Any] | None]:
    """Return `prompt_logprobs` in vLLM's format: one entry for each token of the prompt.

    An entry has the token itself and the `count` likeliest, by id. It is None for the first token,
    which has no context.
    """
    return [None if token.logprob is None else _by_id(token, count) for token in tokens]


def _by_id(token: GeneratedToken, count: int) -> dict[str, Any]:
    ranks = {candidate.id: rank for rank, candidate in enumerate(token.top, 1)}
    entries = {str(top.id): _ranked(top, ranks[top.id]) for top in token.top[:count]}
    entries.setdefault(str(token.id), _ranked(token, ranks.get(token.id)))
    return entries


def _ranked(token: GeneratedToken, rank: int | None) -> dict[str, Any]:
    return {"logprob": token.logprob, "rank": rank, "decoded_token": token.text}


def concatenate(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Concatenate the entries of several runs of tokens of one choice."""
    result = CompletionLogprobs().take(())
    for part in parts:
        for name, entries in result.items():
            entries.extend(part[name])
    return result
