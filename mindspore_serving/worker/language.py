"""The worker's language model: for requests of front ends, and as a stage of methods."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, Union

import msgspec
import numpy as np

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.core.llm_messages import (
    Chunk,
    Event,
    Finished,
    Generate,
    Grammar,
    LLMRequest,
    Refused,
    decode_request,
)
from mindspore_serving.core.sampling_params import SamplingParams
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
    Numbers,
    PartReply,
    SetAdapters,
    to_fault,
)
from mindspore_serving.servable.builtins import json_object
from mindspore_serving.wire.json_shape import SMALL, Buffer, Shape, check_shape
from mindspore_serving.worker.generation_trace import GenerationTrace
from mindspore_serving.worker.job import Job, JobQueue
from mindspore_serving.worker.language_replies import Encoded, encode, to_reply
from mindspore_serving.worker.part_trace import PartTrace

if TYPE_CHECKING:
    from mindspore_serving.llm.serving.async_engine import AsyncEngine
    from mindspore_serving.llm.upstream.engine import UpstreamModel

AnyEngine: TypeAlias = Union["AsyncEngine", "UpstreamModel"]
_LIMITS = LanguageLimits()
_CANCELLED = "the request was cancelled"


class LanguageStage:
    """One model, `name` to clients, for the executors of this worker, on whose threads it is
    called.  `params` are how it samples what a request does not say."""

    def __init__(self, engine: AnyEngine, params: SamplingParams, name: str = "") -> None:
        self.name = name
        self._engine = engine
        self._params = params

    def start(self, queue: JobQueue, jobs: list[Job]) -> None:
        """Give each job's prompt to the model; its texts come back to `queue`."""
        for job in jobs:
            stage = job.part.program.method.stages[job.position]
            try:
                request = self._to_request([job.values[slot] for slot in stage.inputs])
            except ServingError as error:
                queue.resume([job], [error])
                continue
            self._submit(queue, job, msgspec.structs.replace(request, is_stream=job.is_to_stream))

    def _submit(self, queue: JobQueue, job: Job, request: Generate) -> None:
        trace = _trace(job.part.trace, request, self.name)
        generation = _JobGeneration(self._engine, queue, job, trace)
        generation.request_id = self._engine.accept(
            request,
            generation.post,
            job.part.id,
            job.part.request_id,
            trace.timeline if trace else None,
        )
        job.part.generations[generation.request_id] = generation.cancel

    def _to_request(self, values: Sequence[Value]) -> Generate:
        given = json_object(values[1]) if len(values) > 1 else {}
        grammar = given.pop("grammar", None)
        known = msgspec.to_builtins(self._params)
        for name in given:
            if name not in known:
                raise InvalidInputs(f"parameter {name!r} does not exist; there are {list(known)}")
        if given.get("n", 1) != 1:
            raise InvalidInputs(f"n is {given['n']!r}, expected 1 in a stage")
        try:
            params = msgspec.convert({**known, **given}, SamplingParams)
            form = None if grammar is None else msgspec.convert(grammar, Grammar)
        except msgspec.ValidationError as error:
            raise InvalidInputs(f"the parameters cannot be used: {error}") from None
        request = Generate(prompt=_read_prompt(values[0]), params=params, grammar=form)
        _LIMITS.check(request)
        return request


@dataclass(slots=True)
class _JobGeneration:
    """What the engine makes of one job, until its end; on the thread of `queue`, but for `post`."""

    engine: AnyEngine
    queue: JobQueue
    job: Job
    trace: GenerationTrace | None
    request_id: str = ""  # of the engine

    def post(self, events: list[Event] | ServingError, is_last: bool) -> None:
        """Called by the engine, on the thread that collects its events."""
        self.queue.post(lambda: self._take(events, is_last))

    def cancel(self) -> None:
        """Nobody waits for the part any more."""
        self._abandon()
        self.queue.resume([self.job], [DeadlineExceeded(_CANCELLED)])

    def _take(self, events: list[Event] | ServingError, is_last: bool) -> None:
        if self.request_id not in self.job.part.generations:
            return  # cancelled since
        if self.trace is not None:
            self.trace.take(events, is_last=is_last)
        if is_last:
            del self.job.part.generations[self.request_id]
        _put(self.queue, self.job, events)
        if not is_last and self.job.part.left == 0:  # a later stage has failed on a piece
            self._abandon()

    def _abandon(self) -> None:
        del self.job.part.generations[self.request_id]
        self.engine.cancel(self.request_id)
        if self.trace is not None:
            self.trace.end(Code.CANCELLED)


class LanguageService:
    """Serves one model to front ends, on the thread that reads the channel: messages in, replies
    out.  `stage` serves it to methods."""

    def __init__(self, engine: AnyEngine, stage: LanguageStage) -> None:
        self.engine = engine
        self.stage = stage
        self._open: dict[int, str] = {}  # part -> the engine's request
        self._traces: dict[int, GenerationTrace] = {}  # by part
        self._replies: list[tuple[int, Encoded | ServingError, bool]] = []

    @property
    def has_work(self) -> bool:
        return self.engine.num_open > 0

    def numbers(self) -> dict[str, int]:
        """The engine's newest numbers; empty before its first step."""
        stats = self.engine.stats
        return {} if stats is None else msgspec.to_builtins(stats)

    def report(self) -> Numbers:
        """All that the engine counts."""
        return Numbers(self.numbers(), *self.engine.counts(), self.engine.unready)

    def set_adapters(self, message: SetAdapters, send: Callable[[AdaptersSet], None]) -> None:
        """Have the adapters that the message names; `send` gets the answer, on another thread."""
        wanted = {one.name: (one.path, one.generation) for one in message.adapters}

        def done(problems: Mapping[str, ServingError]) -> None:
            faults = {name: to_fault(error) for name, error in problems.items()}
            send(AdaptersSet(message.serial, faults))

        self.engine.adapters.set(wanted, done)

    def check_instances(self, codec: str, chunks: Sequence[Buffer]) -> None:
        """Before the instances of a method are decoded.  Raises InvalidInputs if that would hold up
        the tokens of others."""
        size = sum(map(len, chunks))
        if size > _LIMITS.max_body:
            raise TooLarge(f"the instances have {size} bytes, expected at most {_LIMITS.max_body}")
        if codec in ("ms_json", "ms_json_items") and size > SMALL:
            for chunk in chunks:
                check_shape(chunk, Shape(_LIMITS.max_values, _LIMITS.max_objects))

    def accept(
        self,
        item_id: int,
        method: str,
        body: bytes | memoryview,
        request_id: str = "",
        context: PartTrace | None = None,
    ) -> None:
        """Start a request of a front end, called `request_id` in logs and traced if `context` is
        given.  Raises InvalidInputs if `body` is none."""
        try:
            request = decode_request(method, body)
        except msgspec.DecodeError as error:
            raise InvalidInputs(f"the request cannot be read: {error}") from None

        trace = _trace(context, request, self.stage.name)
        if trace is not None:
            self._traces[item_id] = trace

        def sink(events: list[Event] | ServingError, is_last: bool) -> None:
            if is_last:
                del self._open[item_id]
            if trace is not None:
                trace.take(events, is_last=is_last)
            self._replies.append((item_id, encode(events), is_last))

        self._open[item_id] = self.engine.accept(
            request, sink, item_id, request_id, trace.timeline if trace else None
        )

    def cancel(self, item_id: int) -> None:
        """Nobody waits for the part any more.  It is answered all the same: the master counts."""
        request_id = self._open.pop(item_id, None)
        if request_id is not None:
            self.engine.cancel(request_id)
            if item_id in self._traces:
                self._traces[item_id].end(Code.CANCELLED)
            self._replies.append((item_id, DeadlineExceeded(_CANCELLED), True))

    def collect(self, arena: Arena | NoArena) -> list[PartReply]:
        """What the engine has made since.  Raises RuntimeError if its step loop broke."""
        self.engine.collect()
        replies, self._replies = self._replies, []
        ended: set[int] = set()
        sent: list[PartReply] = []
        for item_id, reply, is_last in replies:
            if item_id in ended:
                continue
            if isinstance(reply, ServingError) and not is_last:  # it cannot be sent
                ended.add(item_id)
                if item_id in self._open:
                    self.engine.cancel(self._open.pop(item_id))
                is_last = True
            spans = (
                self._traces.pop(item_id).finish() if is_last and item_id in self._traces else []
            )
            sent.append(to_reply(arena, item_id, reply, spans, is_last=is_last))
        return sent

    def close(self) -> None:
        self.engine.close()


def _trace(context: PartTrace | None, request: LLMRequest, name: str) -> GenerationTrace | None:
    if context is None or not context.context.is_sampled:
        return None
    return GenerationTrace(context, request, name)


def _put(queue: JobQueue, job: Job, events: list[Event] | ServingError) -> None:
    """What the model made of `job`, for the stages behind."""
    if isinstance(events, ServingError):
        queue.resume([job], [events])
        return
    num_outputs = len(job.part.program.method.stages[job.position].outputs)
    for event in events:
        if isinstance(event, Refused):
            queue.resume([job], [_to_error(event)])
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


def _to_error(refused: Refused) -> ServingError:
    kind = Overloaded if refused.reason == "overloaded" else InvalidInputs
    return kind(refused.text)
