"""A recording while its text is written: pieces to read, pieces that are read, and their order."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mindspore_serving.core.speech_messages import SpokenSegment, Transcribe
from mindspore_serving.llm.sounds.decoding import Samples
from mindspore_serving.llm.sounds.features import RATE, Sound
from mindspore_serving.llm.speech.alignment import Aligner, with_words
from mindspore_serving.llm.speech.decoding import (
    TEMPERATURES,
    PieceDecoding,
    PieceText,
    Searching,
)
from mindspore_serving.llm.speech.models import SpeechModel
from mindspore_serving.llm.speech.pieces import SoundPiece, cut
from mindspore_serving.llm.speech.rules import Floats

_FULL_SCALE = np.float32(32768)


@dataclass(slots=True, eq=False)
class _Reading:
    """A piece in the order of the recording, and its text once that is written."""

    piece: SoundPiece
    text: PieceText | None = None
    has_begun: bool = False


@dataclass(slots=True, eq=False)
class _Owner:
    """The piece of a request, for the batch."""

    request: "SpeechRequest"
    reading: _Reading

    @property
    def is_cancelled(self) -> bool:
        return self.request.is_cancelled

    def finish(self, decoding: PieceDecoding, align: Callable[[list[int]], Floats]) -> None:
        self.request.finish(self.reading, decoding, align)


class SpeechRequest:
    """Recording of a `Transcribe`.

    Used by the thread that computes; `is_cancelled` may be set by any.

    Args:
        request_id: of the request.
        body: the request, without its file.
        samples: the recording.
        model: what reads it.
    """

    def __init__(
        self, request_id: str, body: Transcribe, samples: Samples, model: SpeechModel
    ) -> None:
        self.id, self.body = request_id, body
        self.is_cancelled = False
        self.language = body.language
        self.seconds = len(samples) / RATE
        self.num_bytes = samples.nbytes
        self.num_prompt = self.num_generated = 0
        self._model, self._samples = model, samples
        self._prompt = _prompt_tokens(body.prompt, model)
        pieces = cut(samples)
        self._readings = deque(_Reading(piece) for piece in pieces)
        if not model.tokens.languages:
            self.language = model.family.language

    @property
    def is_done(self) -> bool:
        return not self._readings

    @property
    def is_waiting(self) -> bool:
        """Return whether a piece has not begun."""
        return self._next() is not None

    def sound(self) -> Sound:
        """Return the sound of the next piece."""
        reading = self._next()
        assert reading is not None
        part = self._samples[reading.piece.begin : reading.piece.end]
        return part.astype(np.float32) / _FULL_SCALE

    def begin(self) -> tuple[PieceDecoding, _Owner]:
        """Return the next piece as a text to write, and its owner."""
        reading = self._next()
        assert reading is not None
        reading.has_begun = True
        tokens, body = self._model.tokens, self.body
        prefix = [*self._prompt, tokens.start]
        if tokens.languages:
            task = tokens.translate if body.translates else tokens.transcribe
            prefix += [tokens.languages[self.language], task]
        prefix += [] if body.has_times or tokens.no_times < 0 else [tokens.no_times]
        self.num_prompt += len(prefix)
        decoding = PieceDecoding(
            reading.piece,
            prefix,
            tokens,
            max_tokens=self._model.max_text(reading.piece.seconds, len(prefix)),
            temperatures=[body.temperature] if body.temperature else TEMPERATURES,
            has_times=body.has_times,
            searching=Searching(body.beam_size, body.patience, body.length_penalty),
        )
        return decoding, _Owner(self, reading)

    def begin_whole(self) -> tuple[SoundPiece, Callable[[PieceText], None]]:
        """Return the next piece, and what takes its text."""
        reading = self._next()
        assert reading is not None
        reading.has_begun = True

        def take(text: PieceText) -> None:
            self.num_generated += text.num_tokens
            reading.text = text

        return reading.piece, take

    def finish(
        self, reading: _Reading, decoding: PieceDecoding, align: Callable[[list[int]], Floats]
    ) -> None:
        """Note the text of a piece; what it left unread follows as another piece."""
        text = decoding.finish(self._model.tokenizer)
        if self.body.has_words and text.segments:
            at = decoding.prefix.index(self._model.tokens.start)
            start = [
                token for token in decoding.prefix[at:] if token != self._model.tokens.no_times
            ]
            aligner = Aligner(align, start, reading.piece.seconds)
            text = with_words(text, aligner, self._model, self.language)
        self.num_generated += text.num_tokens
        reading.text = text
        if text.rest is not None:
            rest = SoundPiece(
                max(reading.piece.begin + 1, int(text.rest * RATE)), reading.piece.end
            )
            self._readings.insert(self._readings.index(reading) + 1, _Reading(rest))

    def take(self) -> list[SpokenSegment]:
        """Return the segments that follow those before, and forget their pieces."""
        segments: list[SpokenSegment] = []
        while self._readings and self._readings[0].text is not None:
            segments += self._readings.popleft().text.segments  # type: ignore[union-attr]
        return segments

    def _next(self) -> _Reading | None:
        return next((reading for reading in self._readings if not reading.has_begun), None)


def _prompt_tokens(prompt: str, model: SpeechModel) -> list[int]:
    """Return the end of the prompt, as far as there is room for it."""
    if not prompt.strip():
        return []
    ids = model.tokenizer.encode(" " + prompt.strip(), add_special=False)
    return [model.tokens.previous, *ids[-(model.sizes.max_tokens // 2 - 1) :]]
