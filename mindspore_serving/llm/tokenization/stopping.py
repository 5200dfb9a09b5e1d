"""Stop conditions: where a generated text ends, and how much of it can be streamed before.

A stop string may span tokens, so text that may become one is held back. Knows no model.
"""

from collections.abc import Collection, Sequence
from typing import TypeAlias

from mindspore_serving.core.sampling_params import (
    FinishReason,
    Generated,
    SamplingParams,
    TokenLogprob,
    join,
)
from mindspore_serving.llm.tokenization.decoders import DecoderChain
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer


class Detokenizer:
    """Text of one sequence, token by token, never with half a character.

    The pieces together are what the library decodes at once. (Its `DecodeStream` fails on bytes
    that are no character.)

    Args:
        tokenizer: of the tokens.
        skip_special_tokens: leave out special tokens such as <|im_end|>.
        continues: the text follows another one, so the space of its first token is kept.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special_tokens: bool = True, *, continues: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skip_special_tokens
        self._chain = DecoderChain(tokenizer.decoders, continues)

    def append(self, token_id: int) -> str:
        """Return the text that is complete with this token; "" for an unknown or skipped token."""
        token = self._tokenizer.token(token_id)
        if token is None or (self._skips_special and self._tokenizer.is_special(token_id)):
            return ""
        return self._chain.push(token)

    def flush(self) -> str:
        """Return the text that was held back; incomplete characters become U+FFFD."""
        return self._chain.flush()


_End: TypeAlias = tuple[str, FinishReason | None, str | int | None]
"""Text, the reason if the sequence ends with it, and its stop string or token (None for EOS)."""


class StopChecker:
    """Checks the `index`-th sequence of a request for its end, token by token.

    A sequence ends with an end token of the model (unless `ignore_eos`), a token of
    `stop_token_ids`, the first stop string to be complete (the longest of several that end with the
    same character), or its `max_tokens`-th token. The first three are ignored for the first
    `min_tokens` tokens. Their text is part of the answer only with `include_stop`.

    Args:
        params: of the request.
        eos_ids: the end tokens of the model.
        detokenizer: of the sequence; None if no text is needed.
        max_tokens: limit of tokens, reduced to what the context leaves; None means
            `params.max_tokens`.
        index: of the sequence in its request.
    """

    def __init__(
        self,
        params: SamplingParams,
        eos_ids: Collection[int],
        detokenizer: Detokenizer | None = None,
        max_tokens: int | None = None,
        *,
        index: int = 0,
    ) -> None:
        self.index = index
        self.is_finished = False
        self._stop_ids = frozenset(params.stop_token_ids)
        self._end_ids = self._stop_ids | (frozenset() if params.ignore_eos else frozenset(eos_ids))
        self._includes_stop = params.include_stop
        self._min_tokens = params.min_tokens
        self._max_tokens = params.max_tokens if max_tokens is None else max_tokens
        self._detokenizer = detokenizer
        self._matchers = [_Matcher(stop) for stop in dict.fromkeys(params.stop)]
        self._held = ""  # the start of a stop string, perhaps
        self._num_tokens = 0

    def check(self, token_id: int, logprobs: tuple[TokenLogprob, ...] | None = None) -> Generated:
        """Take the next token, with its `logprobs`.  Must not be called after a finish reason."""
        text, reason, cause = self._take(token_id)
        entries = None if logprobs is None else (logprobs,)
        return Generated(self.index, (token_id,), text, entries, reason, cause)

    def check_all(
        self, token_ids: Sequence[int], logprobs: Sequence[tuple[TokenLogprob, ...]] | None
    ) -> Generated | None:
        """Take the next tokens up to the end of the text; return None for no tokens."""
        parts = []
        for index, token_id in enumerate(token_ids):
            parts.append(self.check(token_id, None if logprobs is None else logprobs[index]))
            if self.is_finished:
                break
        return join(parts) if parts else None

    def end(
        self, reason: FinishReason, cause: str | None = None, *, blames_request: bool = False
    ) -> Generated:
        """End the sequence for a reason outside its text; return the text that was held back."""
        text = ""
        if not self.is_finished:
            text, *_ = self._end("", self._num_tokens <= self._min_tokens)
        return Generated(self.index, (), text, None, reason, cause, blames_request=blames_request)

    def _take(self, token_id: int) -> _End:
        assert not self.is_finished, "This is a bug in the engine: a token after the finish reason"
        is_early = self._num_tokens < self._min_tokens
        self._num_tokens += 1
        if token_id in self._end_ids and not is_early:
            reason = token_id if token_id in self._stop_ids else None
            return self._end_with_token(token_id, reason)
        text = self._decode(token_id)
        if self._num_tokens == self._max_tokens:
            return self._end(text, is_early)
        shown, stop = self._scan(text, is_early)
        if stop is None:
            return shown, None, None
        self.is_finished = True
        return shown, FinishReason.STOP, stop

    def _decode(self, token_id: int) -> str:
        return self._detokenizer.append(token_id) if self._detokenizer else ""

    def _end_with_token(self, token_id: int, reason: int | None) -> _End:
        # The text of the token is left out by not decoding it: the detokenizer may hold bytes of
        # the tokens before it, which are shown.
        text = self._decode(token_id) if self._includes_stop else ""
        shown, ended_by, stop = self._end(text, is_early=False)
        is_complete = ended_by is FinishReason.STOP  # the text of the token completed a stop string
        return shown, FinishReason.STOP, stop if is_complete else reason

    def _end(self, text: str, is_early: bool) -> _End:
        self.is_finished = True
        rest = self._detokenizer.flush() if self._detokenizer else ""
        shown, stop = self._scan(text + rest, is_early)
        if stop is not None:
            return shown, FinishReason.STOP, stop
        return shown + self._held, FinishReason.LENGTH, None

    def _scan(self, text: str, is_early: bool) -> tuple[str, str | None]:
        """Return the text that can be sent, and the stop string that ends it.

        Of the held text and `text`, a suffix that may become a stop string is held back until the
        next characters decide.
        """
        if not self._matchers:
            return text, None
        window = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            stops = [matcher.stop for matcher in self._matchers if matcher.push(char)]
            if stops and not is_early:
                stop = max(stops, key=len)
                return window[: end if self._includes_stop else end - len(stop)], stop
        num_held = max(matcher.length for matcher in self._matchers)
        cut = len(window) - num_held
        self._held = window[cut:]
        return window[:cut], None


class _Matcher:
    """Match of one stop string with the end of the text (Knuth, Morris and Pratt, 1977).

    `length` characters of `stop`, fewer than all, are the end of the text. After a mismatch the
    matcher falls back along the borders, so no character is compared twice from the start.
    """

    __slots__ = ("_borders", "length", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        self._borders = _borders(stop)

    def push(self, char: str) -> bool:
        """Add a character; return whether the text now ends with `stop`."""
        length = self.length
        while length and self.stop[length] != char:
            length = self._borders[length]
        if self.stop[length] == char:
            length += 1
        is_complete = length == len(self.stop)
        self.length = self._borders[length] if is_complete else length
        return is_complete


def _borders(text: str) -> list[int]:
    """Return, for each length, that of the longest proper prefix that is also a suffix."""
    borders = [0, 0]
    length = 0
    for char in text[1:]:
        while length and text[length] != char:
            length = borders[length]
        if text[length] == char:
            length += 1
        borders.append(length)
    return borders
