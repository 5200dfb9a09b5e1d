"""Model of speech as a stage of methods: a recording to its text."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from mindspore_serving.core.llm_messages import Refused
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.core.speech_messages import Heard, Transcribe, Transcribed
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs, ServingError
from mindspore_serving.servable.builtins import json_object
from mindspore_serving.worker.job import Job, JobQueue
from mindspore_serving.worker.language import AnyEngine, Events, LanguageStage, to_error

_Share = Annotated[float, Meta(ge=0, le=1)]
_Factor = Annotated[float, Meta(gt=0, le=10)]


class _Parameters(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters of a stage, as in `Transcribe`."""

    language: str = ""
    translates: bool = False
    prompt: str = ""
    temperature: _Share = 0.0
    beam_size: Annotated[int, Meta(ge=1)] = 1
    patience: _Factor = 1.0
    length_penalty: Annotated[float, Meta(ge=-10, le=10)] = 1.0


class TranscriptionStage(LanguageStage):
    """Stage whose input is the content of a file of sound, and optionally parameters as JSON.

    Its outputs are the text and, optionally, the code of the language.  A stream has the text in
    pieces.
    """

    def __init__(self, engine: AnyEngine, params: SamplingParams | None, name: str = "") -> None:
        super().__init__(engine, params, name)
        self._texts: dict[Job, list[str]] = {}  # of answers that are no streams

    def _to_request(self, values: Sequence[Value], *, is_stream: bool) -> Transcribe:
        file, *more = values
        if isinstance(file, np.ndarray) and file.dtype == np.uint8 and file.ndim == 1:
            file = file.tobytes()
        if not isinstance(file, bytes):
            kind = type(file).__name__
            raise InvalidInputs(f"the recording is {kind}, expected the bytes of a file of sound")
        try:
            parameters = msgspec.convert(json_object(more[0]) if more else {}, _Parameters)
        except msgspec.ValidationError as error:
            names = ", ".join(_Parameters.__struct_fields__)
            raise InvalidInputs(f"parameters: {error}; accepted are {names}") from None
        return Transcribe(file=bytes(file), **msgspec.structs.asdict(parameters))

    def _put(self, queue: JobQueue, job: Job, events: Events) -> None:
        if isinstance(events, ServingError):
            self._texts.pop(job, None)
            queue.resume([job], [events])
            return
        for event in events:
            if isinstance(event, Refused):
                queue.resume([job], [to_error(event)])
            elif isinstance(event, Heard):
                self._add(queue, job, "".join(segment.text for segment in event.segments))
            elif isinstance(event, Transcribed):
                self._end(queue, job, event.language)

    def _add(self, queue: JobQueue, job: Job, text: str) -> None:
        if job.is_to_stream:
            queue.emit(job, (text, "")[: _num_outputs(job)])
        else:
            self._texts.setdefault(job, []).append(text)

    def _end(self, queue: JobQueue, job: Job, language: str) -> None:
        num_outputs = _num_outputs(job)
        if not job.is_to_stream:
            text = "".join(self._texts.pop(job, ())).strip()
            queue.resume([job], [(text, language)[:num_outputs]])
            return
        if num_outputs > 1:
            queue.emit(job, ("", language))
        queue.end(job)


def _num_outputs(job: Job) -> int:
    return len(job.part.program.method.stages[job.position].outputs)
