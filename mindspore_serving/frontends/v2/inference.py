"""Inference of protocol v2 behind both transports: a parsed request in, the tensors of its answer
out.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from mindspore_serving.aio import on_thread_to_the_end
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply, Request
from mindspore_serving.errors import InvalidInputs, ServingError, StageFailed
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.replies import Replies, infer
from mindspore_serving.frontends.terms import Terms
from mindspore_serving.frontends.v2 import language
from mindspore_serving.frontends.v2.inflating import Inflating
from mindspore_serving.frontends.v2.models import TEXT_OUTPUT, V2Model, V2Models
from mindspore_serving.frontends.v2.shared_memory import SharedMemory
from mindspore_serving.tracing.options import TraceOptions
from mindspore_serving.wire.v2 import outputs
from mindspore_serving.wire.v2.outputs import MANY, OutputTensor
from mindspore_serving.wire.v2.request import InferRequest, WantedOutput, check_fits

Selected = Sequence[tuple[OutputTensor, WantedOutput]]
_MICROSECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class V2:
    """The protocol of one server.  `traces` say how requests are traced, None if they are not."""

    state: AppState
    models: V2Models
    memory: SharedMemory
    limits: ServerLimits
    traces: TraceOptions | None = None
    inflating: Inflating = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inflating", Inflating(self.limits.max_body_memory))

    async def infer(
        self, model: V2Model, request: InferRequest, terms: Terms, headers: language.Headers
    ) -> Selected:
        """The one answer.  Raises ServingError, Elsewhere."""
        if model.language is not None:
            self._expect_regions(request)
            generate = language.to_generate(model.language, request, terms, is_stream=False)
            texts = await language.generate(generate, headers)
            return self._select(request, [outputs.of_texts(TEXT_OUTPUT, texts)])
        reply = await infer(self.state.inference, self.wrap(model, request, terms))
        return await self.finish_soon(request, reply)

    async def stream(
        self, model: V2Model, request: InferRequest, terms: Terms, headers: language.Headers
    ) -> AsyncGenerator[Selected, None]:
        """Each piece of the answer, just one for a model that does not stream.  Raises
        ServingError; closing it ends the request.
        """
        if model.language is not None:
            generate = language.to_generate(model.language, request, terms, is_stream=None)
            async for texts in language.stream(generate, headers):
                yield self._select(request, [outputs.of_texts(TEXT_OUTPUT, texts)])
            return
        if not model.streams:
            yield await self.infer(model, request, terms, headers)
            return
        wrapped = self.wrap(model, request, terms)
        wrapped.is_stream = True
        with Replies(self.state.inference, wrapped, self.limits) as replies:
            while (reply := await replies.next()) is not None:
                if reply.failure is not None or reply.instances:
                    yield self.finish(request, reply)

    def finish(self, request: InferRequest, reply: Reply) -> Selected:
        """What the answer shows; outputs that are wanted in shared memory are written there.
        Raises ServingError.
        """
        _check(reply)
        return self._select(request, _join(request, reply))

    async def finish_soon(self, request: InferRequest, reply: Reply) -> Selected:
        """As `finish`; many instances are put together on a thread, while others are answered."""
        _check(reply)
        if len(reply.instances) <= MANY:
            return self.finish(request, reply)
        joined = await on_thread_to_the_end("answers", _join, request, reply)
        return self._select(request, joined)

    def _select(self, request: InferRequest, tensors: Sequence[OutputTensor]) -> Selected:
        selected = list(request.select(tensors))
        for tensor, wanted in selected:
            if wanted.region is not None:
                check_fits(tensor, wanted.region)
                self.memory.write(wanted.region, tensor.raw)
        return selected

    def wrap(self, model: V2Model, request: InferRequest, terms: Terms) -> Request:
        """The request to a method that `request` is.  Raises InvalidInputs, Elsewhere."""
        self._expect_regions(request)
        return Request(
            model.servable,
            model.method,
            model.version,
            request.codec,
            request.body,
            timeout=timeout_of(request, terms, self.limits),
        )

    def _expect_regions(self, request: InferRequest) -> None:
        for one in request.outputs:
            if one.region is not None:
                self.memory.expect(one.region)


def _check(reply: Reply) -> None:
    """Raises the first error in it, and lets go of all."""
    for index, fault in enumerate(reply.faults or ()):
        if fault is not None:
            reply.failure = reply.failure or _of_instance(fault, index, len(reply.instances))
            reply.faults = None
            del fault
            break
    if reply.failure is not None:
        reply.raise_failure()


def _join(request: InferRequest, reply: Reply) -> list[OutputTensor]:
    return outputs.join(reply.instances, is_batched=request.body.is_batched)


def timeout_of(request: InferRequest, terms: Terms, limits: ServerLimits) -> float:
    """Seconds: the least of what the caller, the parameter and the server allow."""
    given = request.parameters.get("timeout") or 0
    if type(given) is not int or given < 0:
        raise InvalidInputs(f"parameter timeout is {given!r}, expected microseconds")
    seconds = [limits.request_timeout]
    if given:
        seconds.append(given * _MICROSECONDS)
    if terms.timeout is not None:
        seconds.append(terms.timeout)
    return min(seconds)


def _of_instance(fault: ServingError, index: int, count: int) -> ServingError:
    if count == 1:
        return fault
    if type(fault) is StageFailed:
        return StageFailed(f"instance {index} of {count}: {fault}")
    return fault
