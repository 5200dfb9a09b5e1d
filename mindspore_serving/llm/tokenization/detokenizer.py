"""Turning tokens into text as they come, never half a character.

The pieces together are what the `tokenizers` library makes of all the tokens at once.  To that end
the decoders that models use are done here token by token, following their configuration in
tokenizer.json; one that is not known is refused when the tokenizer is opened.  Knows no stop
strings.

What is held back: bytes of a character that is not complete; and, with byte fallback, a run of
byte tokens until another token ends it, because the library replaces every byte of a run that is
not valid as a whole.
"""

from collections.abc import Sequence
from typing import Protocol

from mindspore_serving.llm.tokenization.decoders import Config, Stage, make_stages


class TokenSource(Protocol):
    """What a detokenizer needs; a `Tokenizer` is one."""

    decoders: Sequence[Config]  # as in tokenizer.json, sequences flattened

    def token(self, token_id: int) -> str | None:
        """The token as its vocabulary spells it; None if there is none."""
        ...

    def is_special(self, token_id: int) -> bool: ...


class Detokenizer:
    """The text of one sequence, piece by piece.

    Args:
        tokenizer: whose tokens they are.
        skip_special_tokens: leave out the likes of <|im_end|>.
        continues: the text goes on after another, so the first token's space is kept where the
            decoder would drop it.
    """

    def __init__(
        self, tokenizer: TokenSource, skip_special_tokens: bool = True, *, continues: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skip_special_tokens
        self._stages = make_stages(tokenizer.decoders, continues)

    def append(self, token_id: int) -> str:
        """What the token makes showable; "" for an unknown or skipped one."""
        token = self._tokenizer.token(token_id)
        if token is None or (self._skips_special and self._tokenizer.is_special(token_id)):
            return ""
        return "".join(_run(self._stages, [token]))

    def flush(self) -> str:
        """What was held back; bytes that never became a character show as U+FFFD."""
        pieces: list[str] = []
        for index, stage in enumerate(self._stages):
            pieces += _run(self._stages[index + 1 :], stage.end())
        return "".join(pieces)


def _run(stages: Sequence[Stage], tokens: list[str]) -> list[str]:
    for stage in stages:
        tokens = [out for token in tokens for out in stage.push(token)]
    return tokens
