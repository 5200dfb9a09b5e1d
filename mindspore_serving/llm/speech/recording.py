"""Transcription of a recording by a language model: requests for its pieces, and their order.

Knows no engine and no thread.
"""

import io
import unicodedata
import wave
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from msgspec import structs

from mindspore_serving.core.llm_messages import Chunk, Event, Finished, Generate, Started
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.core.speech_messages import Heard, SpokenSegment, Transcribe, Transcribed
from mindspore_serving.isolation.pool import PoolJob
from mindspore_serving.llm.chat.transcription_formats import AnswerText, TranscriptionFormat
from mindspore_serving.llm.sounds.decoding import Samples
from mindspore_serving.llm.sounds.features import RATE
from mindspore_serving.llm.speech.pieces import SoundPiece, cut

MAX_STARTED = 8  # pieces of a recording that the engine has at once; others take turns
MAX_TOKENS = 512  # of a piece: text that repeats itself ends there
_SHORTEST = RATE // 2  # samples of a piece, with silence behind it


@dataclass(slots=True, eq=False)
class StartedPiece:
    """A piece that is a request to the engine, whose id there is `request_id`."""

    piece: SoundPiece
    answer: AnswerText
    request_id: str = ""
    texts: list[str] = field(default_factory=list)  # not sent yet
    is_done: bool = False


PieceEvents: TypeAlias = tuple[StartedPiece, list[Event]]


class RecordingEvents:
    """Makes events of the text of a recording, which is sent in order while it is written.

    `start` starts the request for a piece, whose events `take` gets.
    """

    request_ids: tuple[str, ...] = ()  # of the engine: pieces are requests by themselves

    def __init__(
        self,
        body: Transcribe,
        row: TranscriptionFormat,
        start: Callable[[StartedPiece, Generate], None],
    ) -> None:
        self._format, self._start = row, start
        self._body = structs.replace(body, file=b"")
        self.job: PoolJob | None = None  # that decodes it
        self.num_bytes = 0  # of its samples, which the engine counts
        self._samples: Samples | None = None
        self._seconds = 0.0
        self._waiting: deque[SoundPiece] = deque()
        self.started: deque[StartedPiece] = deque()
        self._begins = True  # the next text is the first of its piece
        self._last = ""  # character of the text
        self._space = ""  # behind it, which is sent if more of the piece follows
        self._language = body.language
        self._num_prompt = self._num_generated = 0

    @property
    def is_done(self) -> bool:
        """True if all texts are sent."""
        return self._samples is not None and not self._waiting and not self.started

    def take(self, _: str, output: Samples | PieceEvents) -> list[Event]:
        """Return the events that samples, or events of a piece, make."""
        if isinstance(output, np.ndarray):
            self._samples, self._seconds = output, len(output) / RATE
            self._waiting.extend(cut(output))
        else:
            self._add(*output)
        segments = self._next_segments()
        events: list[Event] = [Heard(tuple(segments))] if segments else []
        while self._waiting and len(self.started) < MAX_STARTED:
            self._start_piece(self._waiting.popleft())
        if self.is_done:
            counts = self._num_prompt, self._num_generated
            events.append(Transcribed(self._language, self._seconds, *counts))
        return events

    def _add(self, piece: StartedPiece, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Started):
                self._num_prompt += event.num_prompt_tokens
            elif isinstance(event, Chunk):
                piece.texts.append(piece.answer.add(event.text))
            elif isinstance(event, Finished):
                self._num_generated += event.num_generated_tokens
                piece.texts.append(piece.answer.end())
                piece.is_done = True

    def _next_segments(self) -> list[SpokenSegment]:
        """Return the texts that are next in order, and forget pieces whose text is complete."""
        segments = []
        while self.started:
            first = self.started[0]
            text, first.texts = "".join(first.texts), []
            if text := self._joined(text):
                self._language = self._language or first.answer.language
                segments.append(_segment(first.piece, text, self._body.temperature))
            if not first.is_done:
                break
            self.started.popleft()
            self._begins, self._space = True, ""
        return segments

    def _joined(self, text: str) -> str:
        """Return `text` as it follows the text before it, without spaces at its end."""
        if self._begins:
            text = text.lstrip()
            if text and self._last and not (_is_unspaced(self._last) and _is_unspaced(text[0])):
                text = f" {text}"
            self._begins = not text
        text = self._space + text
        stripped = text.rstrip()
        self._space = text[len(stripped) :]
        self._last = stripped[-1:] or self._last
        return stripped

    def _start_piece(self, sound: SoundPiece) -> None:
        assert self._samples is not None
        body = self._body
        piece = StartedPiece(sound, AnswerText(self._format, body.language))
        self.started.append(piece)
        samples = self._samples[sound.begin : sound.end]
        part = {"type": "input_audio", "input_audio": {"data": _wav(samples)}, "field": "file"}
        context = [{"role": "system", "content": body.prompt}] if body.prompt else []
        language = self._format.languages.get(body.language, "")
        params = SamplingParams(max_tokens=MAX_TOKENS, temperature=body.temperature, seed=0)
        request = Generate(
            messages=[*context, {"role": "user", "content": [part]}],
            answer_start=self._format.start(language),
            params=params,
            is_stream=True,
        )
        self._start(piece, request)


def _segment(piece: SoundPiece, text: str, temperature: float) -> SpokenSegment:
    end = piece.start + piece.seconds
    return SpokenSegment(text, piece.start, end, (), piece.start, temperature, 0.0, 0.0, 0.0)


def _is_unspaced(character: str) -> bool:
    """Return whether texts of its script have no spaces: Chinese and Japanese."""
    is_wide = unicodedata.east_asian_width(character) in "WF"
    return is_wide and not unicodedata.name(character, "").startswith("HANGUL")


def _wav(samples: Samples) -> bytes:
    """Return a WAV file of a piece, with silence behind a short one."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, RATE, 0, "NONE", ""))
        writer.writeframesraw(samples.astype("<i2").tobytes())
        writer.writeframes(bytes(2 * max(0, _SHORTEST - len(samples))))
    return file.getvalue()
