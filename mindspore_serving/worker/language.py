"""Language model of a worker: for requests of front ends, and as a stage of methods."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, Union, cast

import msgspec
import numpy as np

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.core.llm_messages import (
    LANGUAGES,
    Chunk,
    Event,
    Finished,
    Generate,
    Grammar,
    LLMRequest,
    Refused,
    decode_request,
)
from mindspore_serving.core.placement import LinkSettings
from mindspore_serving.core.sampling_params import SamplingParams, fill_in
from mindspore_serving.core.value import Value
from mindspore_serving.errors import (
    Code,
    DeadlineExceeded,
    InvalidInputs,
    Overloaded,
    ServingError,
    StageFailed,
    TooLarge,
)
from mindspore_serving.ipc.arena import Arena, NoArena
from mindspore_serving.ipc.messages import (
    AdaptersSet,
    CallReply,
    EngineMetrics,
    PartReply,
    SetAdapters,
    SpanReport,
    to_fault,
)
from mindspore_serving.servable.builtins import json_object
from mindspore_serving.wire.json_shape import SMALL, Buffer, Shape, check_shape
from mindspore_serving.worker.generation_trace import GenerationTrace
from mindspore_serving.worker.job import Job, JobQueue
from mindspore_serving.worker.language_replies import EncodedReply, encode, has_output
from mindspore_serving.worker.part_trace import PartTrace
from mindspore_serving.worker.prefill_calls import PrefillCalls

if TYPE_CHECKING:
    from mindspore_serving.llm.serving.async_engine import AsyncEngine
    from mindspore_serving.llm.speech.sound_engine import SoundEngine
    from mindspore_serving.llm.upstream.engine import UpstreamModel

AnyEngine: TypeAlias = Union["AsyncEngine", "UpstreamModel", "SoundEngine"]
Events: TypeAlias = list[Event] | ServingError
_LIMITS = LanguageLimits()
_CANCELLED = "the request was cancelled"


class EngineRequest:
    """Request in the engine, until its last events or its cancellation.

    `deliver` gets this request, its events or the error that ended it, and whether they are the
    last.
    """

    def __init__(
        self,
        engine: AnyEngine,
        trace: GenerationTrace | None,
        deliver: "Callable[[EngineRequest, Events, bool], None]",
    ) -> None:
        self._engine = engine
        self._trace = trace
        self._deliver = deliver
        self._is_open = True
        self._id = ""  # in the engine

    def start(
        self,
        request: LLMRequest,
        sink: Callable[[Events, bool], None],
        part_id: int,
        request_id: str,
    ) -> None:
        """Pass `request` to the engine, which calls `sink` with events; `sink` calls `take`."""
        timeline = None if self._trace is None else self._trace.timeline
        self._id = self._engine.accept(request, sink, part_id, request_id, timeline)

    def take(self, events: Events, is_last: bool) -> None:
        """Deliver events of the engine, unless the request was cancelled meanwhile."""
        if not self._is_open:
            return
        self._is_open = not is_last
        if self._trace is not None:
            self._trace.take(events, is_last=is_last)
        self._deliver(self, events, is_last)

    def cancel(self) -> None:
        """End the request and answer DeadlineExceeded, as its answer is no longer needed."""
        if self._is_open:
            self.abandon()
            self._deliver(self, DeadlineExceeded(_CANCELLED), True)

    def abandon(self) -> None:
        """End the request in the engine, without delivering anything."""
        self._is_open = False
        self._engine.cancel(self._id)
        if self._trace is not None:
            self._trace.end(Code.CANCELLED)

    def spans(self) -> list[SpanReport]:
        """Return all spans of the part, which consists of this request only."""
        return [] if self._trace is None else self._trace.finish()


class LanguageStage:
    """Language model, called `name` by clients, as a stage for the executors of this worker.

    It is called on the executors' threads.  `params` are the defaults of sampling parameters, if
    None those of the model's card.
    """

    def __init__(self, engine: AnyEngine, params: SamplingParams | None, name: str = "") -> None:
        self.name = name
        self._engine = engine
        self.params = params or SamplingParams(**engine.card.defaults)  # type: ignore[arg-type]

    def start(self, queue: JobQueue, jobs: list[Job]) -> None:
        """Pass each job's prompt to the model; the texts return to `queue`."""
        for job in jobs:
            stage = job.part.program.method.stages[job.position]
            try:
                values = [job.values[slot] for slot in stage.inputs]
                request = self._to_request(values, is_stream=job.is_to_stream)
            except ServingError as error:
                queue.resume([job], [error])
                continue
            self._submit(queue, job, request)

    def _submit(self, queue: JobQueue, job: Job, request: LLMRequest) -> None:
        trace = _trace(job.part.trace, request, self.name)
        running = EngineRequest(self._engine, trace, partial(self._deliver, queue, job))

        def post(events: Events, is_last: bool) -> None:
            queue.post(partial(running.take, events, is_last))

        running.start(request, post, job.part.id, job.part.request_id)
        job.part.cancel_callbacks.append(running.cancel)

    def _deliver(
        self, queue: JobQueue, job: Job, running: EngineRequest, events: Events, is_last: bool
    ) -> None:
        """Pass events of `job` to the later stages, on the thread of `queue`."""
        self._put(queue, job, events)
        if not is_last and job.part.num_unfinished == 0:  # a later stage has failed on a piece
            running.abandon()

    def _put(self, queue: JobQueue, job: Job, events: Events) -> None:
        _put(queue, job, events)

    def _to_request(self, values: Sequence[Value], *, is_stream: bool) -> LLMRequest:
        parameters = json_object(values[1]) if len(values) > 1 else {}
        grammar = parameters.pop("grammar", None)
        languages = {to: parameters.pop(name, "") for name, to in LANGUAGES.items()}
        known = msgspec.to_builtins(self.params)
        for name in parameters:
            if name not in known:
                expected = [*known, *LANGUAGES]
                raise InvalidInputs(f"unknown parameter {name!r}, expected some of {expected}")
        if parameters.get("n", 1) != 1:
            raise InvalidInputs(f"n is {parameters['n']!r}, expected 1 in a stage")
        try:
            params = msgspec.convert(fill_in(known, parameters), SamplingParams)
            grammar = None if grammar is None else msgspec.convert(grammar, Grammar)
            languages = msgspec.convert(languages, dict[str, str])
        except msgspec.ValidationError as error:
            raise InvalidInputs(f"the sampling parameters are invalid: {error}") from None
        prompt = _read_prompt(values[0])
        request = Generate(
            prompt=prompt, params=params, grammar=grammar, is_stream=is_stream, **languages
        )
        _LIMITS.check(request)
        return request


class LanguageService:
    """Language model for requests of front ends, on the thread that reads the channel.

    `stage` is the same model for methods, `transcription` for those that transcribe.
    """

    def __init__(
        self, engine: AnyEngine, stage: LanguageStage, transcription: LanguageStage | None = None
    ) -> None:
        self.engine = engine
        self.stage, self.transcription = stage, transcription or stage
        self._open: dict[int, EngineRequest] = {}  # by id of the part
        self._replies: list[EncodedReply] = []
        self._calls: PrefillCalls | None = None  # of a worker that decodes

    @property
    def has_work(self) -> bool:
        return self.engine.num_open > 0

    def link(self, settings: LinkSettings) -> None:
        """Exchange blocks of prompts with workers on other machines."""
        cast("AsyncEngine", self.engine).link(settings)

    def share_adapters(self) -> None:
        """Let prompts of adapters be computed by workers with the same ones."""
        cast("AsyncEngine", self.engine).adapters.share_keys()

    def hand_off(self, calls: PrefillCalls) -> None:
        """Let other workers compute prompts for this one, which decodes.  Raises StartError."""
        self._calls = calls
        cast("AsyncEngine", self.engine).hand_off(calls)

    def on_prefill(self, message: CallReply) -> None:
        """Take a reply of a worker that computes a prompt."""
        assert self._calls is not None
        handoffs = cast("AsyncEngine", self.engine).handoffs
        assert handoffs is not None
        reply, events = message.reply, self._calls.read(message)
        handoffs.on_reply(reply.id, events, is_last=reply.is_last)

    def stats(self) -> dict[str, int]:
        """Return the newest statistics of the engine; empty before its first step."""
        stats = self.engine.stats
        return {} if stats is None else msgspec.to_builtins(stats)

    def report(self) -> EngineMetrics:
        """Return all metrics of the engine."""
        engine = self.engine
        counts = engine.counts()
        return EngineMetrics(
            self.stats(), *counts, engine.unready, engine.decision, engine.upstreams
        )

    def set_adapters(self, message: SetAdapters, send: Callable[[AdaptersSet], None]) -> None:
        """Load the adapters that the message lists; `send` gets the reply, on another thread."""
        adapters = {source.name: (source.path, source.generation) for source in message.adapters}

        def done(problems: Mapping[str, ServingError]) -> None:
            faults = {name: to_fault(error) for name, error in problems.items()}
            send(AdaptersSet(message.serial, faults))

        self.engine.adapters.set(adapters, done)

    def check_instances(self, codec: str, chunks: Sequence[Buffer]) -> None:
        """Check the encoded instances of a method before they are decoded.

        Raises TooLarge or InvalidInputs if decoding them would delay the tokens of other requests.
        """
        size = sum(map(len, chunks))
        if size > _LIMITS.max_body:
            raise TooLarge(f"the instances have {size} bytes, expected at most {_LIMITS.max_body}")
        if codec in ("ms_json", "ms_json_items") and size > SMALL:
            for chunk in chunks:
                check_shape(chunk, Shape(_LIMITS.max_values, _LIMITS.max_objects))

    def accept(
        self,
        part_id: int,
        method: str,
        body: bytes | memoryview,
        request_id: str = "",
        context: PartTrace | None = None,
    ) -> None:
        """Start a request of a front end; `request_id` is its id in logs, `context` its trace.

        Raises InvalidInputs if `body` cannot be decoded.
        """
        try:
            request = decode_request(method, body)
        except msgspec.DecodeError as error:
            raise InvalidInputs(f"the request cannot be decoded: {error}") from None

        trace = _trace(context, request, self.stage.name)
        running = EngineRequest(self.engine, trace, partial(self._deliver, part_id))
        self._open[part_id] = running
        running.start(request, running.take, part_id, request_id)

    def cancel(self, part_id: int) -> None:
        """Cancel the part.  It is answered all the same, because the master counts answers."""
        if part_id in self._open:
            self._open[part_id].cancel()

    def collect(self, arena: Arena | NoArena) -> list[PartReply]:
        """Return the replies that are ready.  Raises RuntimeError if the step loop failed."""
        self.engine.collect()
        replies, self._replies = self._replies, []
        return [reply.to_message(arena) for reply in replies]

    def _deliver(self, part_id: int, running: EngineRequest, events: Events, is_last: bool) -> None:
        content = encode(events)
        if isinstance(content, ServingError) and not is_last:  # the events cannot be encoded
            running.abandon()
            is_last = True
        if is_last:
            del self._open[part_id]
        spans = running.spans() if is_last else []
        self._replies.append(EncodedReply(part_id, content, has_output(events), is_last, spans))

    def close(self) -> None:
        self.engine.close()


def _trace(context: PartTrace | None, request: LLMRequest, name: str) -> GenerationTrace | None:
    if context is None or not context.context.is_sampled:
        return None
    return GenerationTrace(context, request, name)


def _put(queue: JobQueue, job: Job, events: Events) -> None:
    """Pass events of `job` to the later stages."""
    if isinstance(events, ServingError):
        queue.resume([job], [events])
        return
    num_outputs = len(job.part.program.method.stages[job.position].outputs)
    for event in events:
        if isinstance(event, Refused):
            queue.resume([job], [to_error(event)])
        elif isinstance(event, Chunk):
            if event.finish_reason == "error":
                text = str(event.stop_reason)
                error = InvalidInputs(text) if event.blames_request else StageFailed(text)
                queue.resume([job], [error])
                return
            outcome = (event.text, event.finish_reason or "")[:num_outputs]
            if job.is_to_stream:
                queue.emit(job, outcome)
            else:
                queue.resume([job], [outcome])
        elif isinstance(event, Finished) and job.is_to_stream:
            queue.end(job)


def _read_prompt(value: Value) -> str | list[int]:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim == 1:
        ids: list[int] = value.tolist()
        return ids
    raise InvalidInputs("the prompt should be a text, or an array of token ids")


def to_error(refused: Refused) -> ServingError:
    """Return the error of a refused request."""
    kind = Overloaded if refused.reason == "overloaded" else InvalidInputs
    return kind(refused.text)
