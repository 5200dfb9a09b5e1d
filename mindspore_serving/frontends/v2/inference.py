"""Inference of protocol v2 for both transports: from parsed requests to outputs."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from mindspore_serving.aio import on_thread_to_the_end
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply, Request
from mindspore_serving.errors import InvalidInputs, ServingError, StageFailed
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.replies import Replies, infer
from mindspore_serving.frontends.request_options import RequestOptions
from mindspore_serving.frontends.v2 import language
from mindspore_serving.frontends.v2.decompression import BodyDecompressor
from mindspore_serving.frontends.v2.models import TEXT_OUTPUT, V2Model, V2Models
from mindspore_serving.frontends.v2.shared_memory import SharedMemory
from mindspore_serving.tracing.options import TraceOptions
from mindspore_serving.wire.v2 import outputs
from mindspore_serving.wire.v2.outputs import MANY, OutputTensor
from mindspore_serving.wire.v2.request import InferRequest, RequestedOutput, check_fits


class Selected(list[tuple[OutputTensor, RequestedOutput]]):
    """Outputs of an answer, by the `version` that a traffic rule has chosen; else 0."""

    version = 0


_MICROSECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class V2:
    """The protocol of one server; `traces` are the options of tracing, None if it is off."""

    state: AppState
    models: V2Models
    memory: SharedMemory
    limits: ServerLimits
    traces: TraceOptions | None = None
    decompressor: BodyDecompressor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "decompressor", BodyDecompressor(self.limits.max_body_memory))

    async def infer(
        self,
        model: V2Model,
        request: InferRequest,
        options: RequestOptions,
        headers: language.Headers,
    ) -> Selected:
        """Run a request with one answer.  Raises ServingError and RemoteRegionError."""
        if model.language is not None:
            self._expect_regions(request)
            generate = language.to_generate(model.language, request, options, is_stream=False)
            texts = await language.generate(generate, headers)
            tensors = [outputs.of_texts(TEXT_OUTPUT, texts)]
            return self._select(request, tensors, generate.version)
        reply = await infer(self.state.inference, self.wrap(model, request, options))
        return await self.finish_soon(request, reply)

    async def stream(
        self,
        model: V2Model,
        request: InferRequest,
        options: RequestOptions,
        headers: language.Headers,
    ) -> AsyncGenerator[Selected, None]:
        """Iterate over the chunks of an answer, one for a model that does not stream.

        Raises ServingError.  Closing the iterator ends the request.
        """
        if model.language is not None:
            generate = language.to_generate(model.language, request, options, is_stream=None)
            async for texts in language.stream(generate, headers):
                tensors = [outputs.of_texts(TEXT_OUTPUT, texts)]
                yield self._select(request, tensors, generate.version)
            return
        if not model.streams:
            yield await self.infer(model, request, options, headers)
            return
        wrapped = self.wrap(model, request, options)
        wrapped.is_stream = True
        with Replies(self.state.inference, wrapped, self.limits) as replies:
            while (reply := await replies.next()) is not None:
                if reply.failure is not None or reply.instances:
                    yield self.finish(request, reply)

    def finish(self, request: InferRequest, reply: Reply) -> Selected:
        """Return the outputs of a reply; those for shared memory are written there.

        Raises ServingError.
        """
        _check(reply)
        return self._select(request, _join(request, reply), reply.version)

    async def finish_soon(self, request: InferRequest, reply: Reply) -> Selected:
        """Return the outputs of a reply; many instances are joined on a thread."""
        _check(reply)
        if len(reply.instances) <= MANY:
            return self.finish(request, reply)
        joined = await on_thread_to_the_end("answers", _join, request, reply)
        return self._select(request, joined, reply.version)

    def _select(
        self, request: InferRequest, tensors: Sequence[OutputTensor], version: int
    ) -> Selected:
        selected = Selected(request.select(tensors))
        selected.version = version
        for tensor, output in selected:
            if output.region is not None:
                check_fits(tensor, output.region)
                self.memory.write(output.region, tensor.raw)
        return selected

    def wrap(self, model: V2Model, request: InferRequest, options: RequestOptions) -> Request:
        """Make the request to a method.  Raises InvalidInputs and RemoteRegionError."""
        self._expect_regions(request)
        return Request(
            model.servable,
            model.method,
            model.requested,
            request.codec,
            request.body,
            timeout=timeout_of(request, options, self.limits),
            priority=priority_of(request),
            sequence=request.sequence,
        )

    def _expect_regions(self, request: InferRequest) -> None:
        for output in request.outputs:
            if output.region is not None:
                self.memory.expect(output.region)


def _check(reply: Reply) -> None:
    """Raise the first error of a reply, and drop its references to all errors."""
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


def timeout_of(request: InferRequest, options: RequestOptions, limits: ServerLimits) -> float:
    """Return the timeout in seconds, the least of caller, parameter and server."""
    parameter = request.parameters.get("timeout") or 0
    if type(parameter) is not int or parameter < 0:
        raise InvalidInputs(f"parameter timeout is {parameter!r}, expected microseconds")
    seconds = [limits.request_timeout]
    if parameter:
        seconds.append(parameter * _MICROSECONDS)
    if options.timeout is not None:
        seconds.append(options.timeout)
    return min(seconds)


def priority_of(request: InferRequest) -> int:
    """Return the level in the parameter `priority`, 0 without one.  Raises InvalidInputs."""
    parameter = request.parameters.get("priority") or 0
    if isinstance(parameter, str) and parameter.isdecimal() and len(parameter) < 20:
        parameter = int(parameter)
    if type(parameter) is not int or not 0 <= parameter < 1 << 64:
        raise InvalidInputs(
            f"parameter priority is {str(parameter)[:64]}, expected a level, 1 for the first"
        )
    return parameter


def _of_instance(fault: ServingError, index: int, count: int) -> ServingError:
    if count == 1:
        return fault
    if type(fault) is StageFailed:
        return StageFailed(f"instance {index} of {count}: {fault}")
    return fault
