"""The `Inference` of a front-end process, which sends requests to the master."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mindspore_serving import log
from mindspore_serving.core.service import Reply, Request, header_of_task, tenant_of_task
from mindspore_serving.master.payload_lender import ZERO_COPY_CODECS
from mindspore_serving.server.processes.catalog import Catalog
from mindspore_serving.server.processes.messages import (
    CancelRequest,
    ControlAnswer,
    Submit,
    ToFrontEnd,
)
from mindspore_serving.server.processes.pipe import Pipe
from mindspore_serving.tracing.request_span import current
from mindspore_serving.tracing.span import METHOD, SERVABLE
from mindspore_serving.wire import splitting

MAX_PREFIX = 1 << 15  # characters or token ids of a prompt; the master compares no more
OnReply = Callable[[Reply], None]


@dataclass(frozen=True, slots=True)
class SubmittedCall:
    """A request that was sent to the master."""

    inference: "RemoteInference"
    id: int

    def cancel(self) -> None:
        """Cancel the request, unless it has been answered."""
        self.inference.cancel(self.id)


class RemoteInference:
    """The `core.service.Inference` of a front-end process; only the master refuses requests."""

    is_refusing = False

    def __init__(self, pipe: Pipe[ToFrontEnd], numbers: "Iterable[int]", catalog: Catalog) -> None:
        self._pipe = pipe
        self._catalog = catalog
        self._numbers = iter(numbers)
        self._waiting: dict[int, tuple[OnReply, str]] = {}  # and the codec

    def refusal(self, *request: object) -> None:
        return None

    def submit(self, request: Request, on_reply: OnReply) -> SubmittedCall:
        number = next(self._numbers)
        self._waiting[number] = on_reply, request.codec
        self._pipe.send(self._to_message(number, request))
        return SubmittedCall(self, number)

    def _to_message(self, number: int, request: Request) -> Submit:
        traceparent = tracestate = ""
        span = request.span or current.get()
        if span is not None:
            span.attributes.update({SERVABLE: request.servable, METHOD: request.method})
            traceparent, tracestate = span.context.traceparent, span.context.state
        return Submit(
            number,
            request.servable,
            request.method,
            request.version,
            request.codec,
            list(map(self._pipe.put, splitting.pack(request.codec, request.body))),
            request.timeout,
            request.is_stream,
            _beginning(request.prefix),
            request.id or log.request_id.get(),
            traceparent,
            tracestate,
            request.sequence,
            request.tenant or tenant_of_task.get(),
            request.priority,
            self._sticky(request),
        )

    def _sticky(self, request: Request) -> str:
        """Return the value of the header that the version of `request` is chosen by."""
        signature = self._catalog.signature(request.servable) if not request.version else None
        if signature is None or not signature.sticky_header:
            return ""
        find_header = request.find_header or header_of_task.get()
        return find_header(signature.sticky_header) if find_header is not None else ""

    def cancel(self, number: int) -> None:
        """Cancel a request, unless it has been answered."""
        if self._waiting.pop(number, None) is not None:
            self._pipe.send(CancelRequest(number))

    def take(self, answer: ControlAnswer) -> None:
        """Handle a reply of the master."""
        on_reply, codec = self._waiting.get(answer.id, (None, ""))
        take = self._pipe.view if codec in ZERO_COPY_CODECS else self._pipe.take
        instances = list(map(take, answer.instances))
        reply = Reply(instances, is_last=answer.is_last, has_output=answer.has_output)
        reply.cache, reply.version = answer.cache, answer.version
        if answer.faults is not None:
            reply.faults = [fault.to_error() if fault else None for fault in answer.faults]
        if answer.failure is not None:
            reply.failure = answer.failure.to_error()
        if on_reply is None:
            return
        if reply.is_last:
            del self._waiting[answer.id]
        on_reply(reply)


def _beginning(texts: Iterable[str | Sequence[int]]) -> list[str | list[int]]:
    """Return the beginning of a prompt, at most MAX_PREFIX long, by which a worker is chosen."""
    pieces: list[str | list[int]] = []
    left = MAX_PREFIX
    for text in texts:
        piece = text[:left]
        pieces.append(piece if isinstance(piece, str) else list(piece))
        left -= len(piece)
        if left <= 0:
            break
    return pieces
