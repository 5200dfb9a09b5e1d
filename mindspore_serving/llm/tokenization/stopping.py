"""Deciding when a text ends, and how much of it can be shown before.

Stop strings may be split over tokens; what may become one is held back.  Knows no model.
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
    """The text of one sequence, token by token, never half a character: together, what the library
    decodes at once.  (Its `DecodeStream` fails on bytes that are no character.)

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
        """The text that is complete with this token; "" for an unknown or skipped one."""
        token = self._tokenizer.token(token_id)
        if token is None or (self._skips_special and self._tokenizer.is_special(token_id)):
            return ""
        return self._chain.push(token)

    def flush(self) -> str:
        """What was held back; bytes that are no complete character become U+FFFD."""
        return self._chain.flush()


_End: TypeAlias = tuple[str, FinishReason | None, str | int | None]
"""Text, whether the sequence ends with it, and its stop string or token; None for an end token."""


class StopChecker:
    """Follows the `index`-th sequence of a request, token by token.

    A sequence ends with an end token of the model (unless `ignore_eos`), a token of
    `stop_token_ids`, the first stop string to be complete (the longest of several that end with the
    same character), or its `max_tokens`-th token.  The first three are ignored for the first
    `min_tokens` tokens.  Their text is shown only if `include_stop`.

    Args:
        params: of the request.
        eos_ids: the model's own end tokens.
        detokenizer: of the sequence; None if no text is wanted.
        max_tokens: most tokens, with what the context leaves; None takes `params.max_tokens`.
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
        """Take the next token, with its `logprobs`.  After a finish reason there may be none."""
        text, reason, cause = self._take(token_id)
        entries = None if logprobs is None else (logprobs,)
        return Generated(self.index, (token_id,), text, entries, reason, cause)

    def check_all(
        self, token_ids: Sequence[int], logprobs: Sequence[tuple[TokenLogprob, ...]] | None
    ) -> Generated | None:
        """Take the next tokens, up to the end of the text; None for no tokens."""
        parts = []
        for place, token_id in enumerate(token_ids):
            parts.append(self.check(token_id, None if logprobs is None else logprobs[place]))
            if self.is_finished:
                break
        return join(parts) if parts else None

    def end(
        self, reason: FinishReason, cause: str | None = None, *, blames_request: bool = False
    ) -> Generated:
        """End the sequence for a reason that is not in its text: what was still held back."""
        text = ""
        if not self.is_finished:
            text, *_ = self._end("", self._num_tokens <= self._min_tokens)
        return Generated(self.index, (), text, None, reason, cause, blames_request=blames_request)

    def _take(self, token_id: int) -> _End:
        assert not self.is_finished, "This is a bug in the engine: a token after the last"
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
        """What of the held text and `text` can be shown, and the stop string that ends it."""
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
    """How much of a stop string the text ends with (Knuth, Morris and Pratt)."""

    __slots__ = ("_borders", "length", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0  # of the longest start of `stop`, not the whole, that ends the text
        self._borders = _borders(stop)

    def push(self, char: str) -> bool:
        """Whether the text, with `char`, ends with `stop`."""
        length = self.length
        while length and self.stop[length] != char:
            length = self._borders[length]
        if self.stop[length] == char:
            length += 1
        is_complete = length == len(self.stop)
        self.length = self._borders[length] if is_complete else length
        return is_complete


def _borders(text: str) -> list[int]:
    """For each length, the length of the longest proper start of text[:length] that ends it."""
    borders = [0, 0]
    length = 0
    for char in text[1:]:
        while length and text[length] != char:
            length = borders[length]
        if text[length] == char:
            length += 1
        borders.append(length)
    return borders
