"""An engine of a language model that also transcribes: pieces of recordings are its requests.

Files are decoded in child processes; pieces of all recordings, and chats, share the steps.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from mindspore_serving.core.llm_messages import Chunk, Generate, LLMRequest, Refused, RequestRefused
from mindspore_serving.core.speech_messages import Transcribe
from mindspore_serving.errors import InvalidField, Overloaded, ServingError
from mindspore_serving.isolation.pool import JobFailure
from mindspore_serving.llm.chat.transcription_formats import TranscriptionFormat
from mindspore_serving.llm.loader import OpenedModel
from mindspore_serving.llm.serving.async_engine import AsyncEngine, ItemLane, UnansweredRequest
from mindspore_serving.llm.serving.recording import Timeline
from mindspore_serving.llm.serving.sinks import Sink
from mindspore_serving.llm.speech.decoding_pool import (
    MAX_SOUND,
    MAX_WAITING,
    open_pool,
    samples_of,
)
from mindspore_serving.llm.speech.recording import RecordingEvents, StartedPiece


class TranscribingEngine(AsyncEngine):
    """Owner of the step loop of one model, whose transcriptions have the format `row`."""

    def __init__(
        self,
        opened: OpenedModel,
        row: TranscriptionFormat,
        wake: Callable[[], None],
        steps: ItemLane | None = None,
    ) -> None:
        super().__init__(opened, wake, steps)
        self._format, self._pool = row, open_pool(opened.config)

    def accept(
        self,
        request: LLMRequest,
        sink: Sink,
        item_id: int = 0,
        log_id: str = "",
        timeline: Timeline | None = None,
    ) -> str:
        """Start a request as `AsyncEngine.accept` does."""
        if not isinstance(request, Transcribe):
            return super().accept(request, sink, item_id, log_id, timeline)
        request_id = str(next(self._ids))

        def start(piece: StartedPiece, request_of_piece: Generate) -> None:
            take = partial(self._take_piece, request_id, piece)
            if request_id in self._open:
                piece.request_id = self.accept(request_of_piece, take, item_id, log_id)
            if request_id not in self._open:  # it was cancelled by another thread
                self.cancel(piece.request_id)

        recording = RecordingEvents(request, self._format, start)
        self._open[request_id] = UnansweredRequest(recording, sink, item_id, log_id)
        try:
            self._check(request)
            done = partial(self._take_sound, request_id)
            recording.job = self._pool.submit(request.file, done)
        except ServingError as error:
            self._fail(request_id, error)
        return request_id

    def close(self) -> None:
        """End the threads and free the model."""
        self._pool.close()
        super().close()

    def _check(self, request: Transcribe) -> None:
        """Raise InvalidField or Overloaded for a request that is not started."""
        if len(self._recordings()) > MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} recordings are waiting, the most; try again")
        languages = self._format.languages
        if request.language and request.language not in languages:
            problem = f"is {request.language!r:.40}, expected one of {', '.join(languages)}"
            raise InvalidField("language", problem)
        if request.translates:
            raise InvalidField("model", text="this model transcribes and cannot translate")
        if request.has_times or request.has_words:
            problem = "needs timestamps, which this model does not produce: use json or text"
            raise InvalidField("response_format", problem)
        if request.prompt and not self._format.takes_prompt:
            raise InvalidField("prompt", "is set, expected none: this model takes sounds alone")
        if request.beam_size > 1:
            problem = f"is {request.beam_size}, expected 1: this model has no beam search"
            raise InvalidField("beam_size", problem)

    def _drop(self, request_id: str) -> Any:
        answer = super()._drop(request_id)
        if isinstance(answer, RecordingEvents):
            if answer.job is not None:
                self._pool.cancel(answer.job)
            for piece in answer.started:
                self.cancel(piece.request_id)
        return answer

    def _recordings(self) -> list[RecordingEvents]:
        answers = [entry.answer for entry in list(self._open.values())]
        return [answer for answer in answers if isinstance(answer, RecordingEvents)]

    def _take_sound(self, request_id: str, answer: bytes | JobFailure) -> None:
        """Take a decoded recording, on a thread of the pool."""
        entry = self._open.get(request_id)
        if entry is None:
            return  # it was cancelled
        try:
            samples = samples_of(answer)
            with self._lock:
                held = sum(recording.num_bytes for recording in self._recordings())
                if held and held + samples.nbytes > MAX_SOUND:
                    raise Overloaded("too many recordings are in memory; try again")
                entry.answer.num_bytes = samples.nbytes
            self._put([(request_id, samples)])
        except ServingError as error:
            self._fail(request_id, error)

    def _take_piece(self, request_id: str, piece: StartedPiece, outcome: Any, _: bool) -> None:
        """Take events of a piece, or why it failed, on the thread that collects."""
        self._put([(request_id, _problem(outcome) or (piece, outcome))])


def _problem(outcome: Any) -> ServingError | None:
    """Return why a piece failed; None if it did not."""
    if isinstance(outcome, ServingError):
        return outcome
    for event in outcome:
        if isinstance(event, Refused):
            return RequestRefused(event)
        if isinstance(event, Chunk) and event.finish_reason == "error":
            error: ServingError = event.to_error()
            return error
    return None
