"""Deciding when a text ends, and how much of it can be shown before.

Stop strings may be split over tokens; what may become one is held back.  Knows no model.
"""

from collections.abc import Collection
from dataclasses import dataclass

from mindspore_serving.core.sampling_params import FinishReason, SamplingParams
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


@dataclass(frozen=True, slots=True)
class Emitted:
    """The text that one token adds, and whether the sequence ends with it."""

    text: str
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or stop token; None for an end token


class StopChecker:
    """Follows one sequence, token by token.

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
    ) -> None:
        self._stop_ids = frozenset(params.stop_token_ids)
        self._end_ids = self._stop_ids | (frozenset() if params.ignore_eos else frozenset(eos_ids))
        self._includes_stop = params.include_stop
        self._min_tokens = params.min_tokens
        self._max_tokens = params.max_tokens if max_tokens is None else max_tokens
        self._detokenizer = detokenizer
        self._matchers = [_Matcher(stop) for stop in dict.fromkeys(params.stop)]
        self._held = ""  # the start of a stop string, perhaps
        self._num_tokens = 0
        self._is_finished = False

    def check(self, token_id: int) -> Emitted:
        """Take the next token.  After a finish reason there may be none."""
        assert not self._is_finished, "This is a bug in the engine: a token after the last"
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
            return Emitted(shown)
        self._is_finished = True
        return Emitted(shown, FinishReason.STOP, stop)

    def finish(self) -> str:
        """The text still held back, when the engine ends the sequence."""
        if self._is_finished:
            return ""
        return self._end("", self._num_tokens <= self._min_tokens).text

    def _decode(self, token_id: int) -> str:
        return self._detokenizer.append(token_id) if self._detokenizer else ""

    def _end_with_token(self, token_id: int, reason: int | None) -> Emitted:
        # The text of the token is left out by not decoding it: the detokenizer may hold bytes of
        # the tokens before it, which are shown.
        text = self._decode(token_id) if self._includes_stop else ""
        ended = self._end(text, is_early=False)
        if ended.finish_reason is FinishReason.STOP:  # its text completed a stop string
            return ended
        return Emitted(ended.text, FinishReason.STOP, reason)

    def _end(self, text: str, is_early: bool) -> Emitted:
        self._is_finished = True
        rest = self._detokenizer.flush() if self._detokenizer else ""
        shown, stop = self._scan(text + rest, is_early)
        if stop is not None:
            return Emitted(shown, FinishReason.STOP, stop)
        return Emitted(shown + self._held, FinishReason.LENGTH)

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
