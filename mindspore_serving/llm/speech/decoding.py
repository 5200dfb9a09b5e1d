"""The text of one piece of sound: its tokens, whether they are good enough, and its segments.

A text that repeats itself, or whose tokens are unlikely, is written again at a higher temperature,
as Whisper's reference does.  Knows no runner.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.core.speech_messages import SpokenSegment
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.engine.beams import BeamSearch
from mindspore_serving.llm.speech.models import SpeechTokens
from mindspore_serving.llm.speech.pieces import SoundPiece
from mindspore_serving.llm.speech.rules import (
    PRECISION,
    Floats,
    TokenRules,
    choose,
    probability_of,
)
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MAX_COMPRESSION, MIN_LOGPROB, MAX_NO_SPEECH = 2.4, -1.0, 0.6
# Seconds after the last time of a text that are read again, and before it, so that there is an end.
MIN_REST, MIN_READ = 0.5, 1.0
_Part: TypeAlias = tuple[float, float, int, list[int]]
"""Start and end in seconds, the number of the first token, and the tokens."""

_SEED = 0  # the same recording has the same text


@dataclass(frozen=True, slots=True)
class PieceText:
    """Text of a piece: segments, and the seconds of the recording from which on to read again.

    `logprobs` are those of all tokens of text in the segments.
    """

    segments: list[SpokenSegment]
    rest: float | None
    num_tokens: int
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class Searching:
    """Beam search of texts: `beam_size` texts are followed, 1 for no search.

    It ends with `beam_size * patience` complete ones that no other may surpass, by the sum of
    log-probabilities divided by a power of the length, `length_penalty`.
    """

    beam_size: int = 1
    patience: float = 1.0
    length_penalty: float = 1.0

    def begin(
        self, rules: Callable[[Sequence[int]], TokenRules], *, end: int, max_tokens: int
    ) -> BeamSearch:
        """Return the search for a text of up to `max_tokens` tokens."""
        penalty = self.length_penalty
        return BeamSearch(
            SamplingParams(temperature=0.0, num_beams=self.beam_size, length_penalty=penalty),
            end_ids=(end,),
            max_tokens=max_tokens,
            num_forced=0,
            edits_of=rules,
            max_ended=max(1, round(self.beam_size * self.patience)),
        )


class PieceDecoding:
    """Tokens of a piece while they are written.

    Args:
        piece: what is read.
        prefix: tokens before the text, the last of which may be that without times.
        tokens: special tokens of the model.
        max_tokens: of the text.
        temperatures: to try, one after another.
        has_times: write times.
        searching: how texts are searched at a temperature of 0.
    """

    def __init__(
        self, piece: SoundPiece, prefix: Sequence[int], tokens: SpeechTokens, *, max_tokens: int,
        temperatures: Sequence[float], has_times: bool, searching: Searching = Searching(),
    ) -> None:  # fmt: skip
        self.piece, self.prefix = piece, list(prefix)
        self.no_speech = 0.0
        self._tokens, self._max_tokens = tokens, max_tokens
        self._temperatures = list(temperatures)
        self._has_times, self._searching = has_times, searching
        self._random = np.random.default_rng(_SEED)
        self.num_generated = 0
        self._begin()

    def _begin(self) -> None:
        self.temperature = self._temperatures.pop(0)
        self.written: list[int] = []
        self.logprobs: list[float] = []
        self.is_done = False
        self._search = None
        if self.temperature == 0 and self._searching.beam_size > 1:
            self._search = self._searching.begin(
                self._rules, end=self._tokens.end, max_tokens=self._max_tokens
            )

    @property
    def width(self) -> int:
        """Number of texts that are followed at most."""
        return self._searching.beam_size

    @property
    def newest(self) -> tuple[Sequence[int], Sequence[int]]:
        """Newest token of each text, and the text of the step before that each continues."""
        if self._search is None:
            return self.written[-1:], ()
        return self._search.tokens, self._search.parents

    def _rules(self, written: Sequence[int]) -> TokenRules:
        return TokenRules(self._tokens, written, self._has_times)

    def note_start(self, logits: Floats) -> None:
        """Note the logits after the token that starts a text."""
        self.no_speech = probability_of(logits, self._tokens.no_speech)

    def take(self, logits: Floats) -> None:
        """Choose the next token of each text.  Changes `logits`, [texts, V]."""
        self.num_generated += len(logits)
        if self._search is not None:
            self._search.advance(logits)
            self.is_done = self._search.is_done
            if self.is_done:
                self._take_best(self._search)
            return
        rules = self._rules(self.written)
        choice = choose(logits[0], rules, self.temperature, self._random)
        self.logprobs.append(choice.logprob)
        if choice.token == self._tokens.end:
            self.is_done = True
            return
        self.written.append(choice.token)
        self.is_done = len(self.written) >= self._max_tokens

    def _take_best(self, search: BeamSearch) -> None:
        if search.problem:
            raise ServingError(search.problem)
        (beam,) = search.best(1)
        self.logprobs = list(beam.gains)
        self.written = list(beam.tokens)
        if self.written[-1] == self._tokens.end:
            self.written.pop()

    @property
    def mean_logprob(self) -> float:
        return sum(self.logprobs) / (len(self.written) + 1)

    def text_tokens(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens that are text."""
        return [token for token in tokens if token < self._tokens.first_mark]

    def retry(self, text: str) -> bool:
        """Begin again at the next temperature if `text` is poor; return whether that is so."""
        is_silence = self.is_silence
        is_poor = compression_of(text) > MAX_COMPRESSION or self.mean_logprob < MIN_LOGPROB
        if not self._temperatures or is_silence or not is_poor:
            return False
        self._begin()
        return True

    @property
    def is_silence(self) -> bool:
        """Return whether nobody speaks, as the model is unsure of its text as well."""
        return self.no_speech > MAX_NO_SPEECH and self.mean_logprob < MIN_LOGPROB

    def finish(self, tokenizer: Tokenizer) -> PieceText:
        """Return the segments of the text."""
        if self.is_silence:
            return PieceText([], None, self.num_generated, [])
        parts, rest = self._parts()
        text = tokenizer.decode(self.text_tokens(self.written))
        shared = (self.temperature, self.mean_logprob, compression_of(text), self.no_speech)
        start = self.piece.start
        segments: list[SpokenSegment] = []
        logprobs: list[float] = []
        for begin, end, number, tokens in parts:
            words = decode_behind(tokenizer, self.text_tokens(tokens))
            if words.strip() and end > begin:
                times = (round(start + begin, 3), round(start + end, 3))
                row = (words, *times, tuple(tokens), start, *shared)
                segments.append(SpokenSegment(*row))
                logprobs += self._logprobs_of(number, tokens)
        later = None if rest is None else start + rest
        return PieceText(segments, later, self.num_generated, logprobs)

    def _logprobs_of(self, number: int, tokens: Sequence[int]) -> list[float]:
        pairs = zip(tokens, self.logprobs[number:], strict=False)
        return [logprob for token, logprob in pairs if token < self._tokens.first_mark]

    def _parts(self) -> tuple[list[_Part], float | None]:
        """Return the segments, and what is to be read again."""
        first, written = self._tokens.first_time, self.written
        seconds = self.piece.seconds
        is_time = [token >= first for token in written]
        pairs = [i for i in range(1, len(written)) if is_time[i] and is_time[i - 1]]
        ends_once = is_time[-2:] == [False, True]
        if not pairs:
            times = [token for token in written if token >= first]
            is_known = bool(times) and times[-1] != first
            end = (times[-1] - first) * PRECISION if is_known else seconds
            return [(0.0, min(end, seconds), 0, written)], None
        cuts = [0, *pairs, *([len(written)] if ends_once else [])]
        parts: list[_Part] = []
        for number, stop in zip(cuts, cuts[1:], strict=False):
            tokens = written[number:stop]
            start, end = ((token - first) * PRECISION for token in (tokens[0], tokens[-1]))
            parts.append((start, min(end, seconds), number, tokens))
        last = (written[pairs[-1] - 1] - first) * PRECISION
        has_rest = not ends_once and MIN_READ <= last < seconds - MIN_REST
        return parts, last if has_rest else None


def decode_behind(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """Return the text of tokens with the space before it, which some tokenizers cut off."""
    text = tokenizer.decode(tokens)
    is_cut = bool(tokens) and (tokenizer.token(tokens[0]) or "").startswith("▁")
    return f" {text}" if is_cut and not text.startswith(" ") else text


def compression_of(text: str) -> float:
    """Return how often a text is longer than compressed."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0
