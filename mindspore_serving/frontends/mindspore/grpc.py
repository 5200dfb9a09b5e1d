"""gRPC service of the original, MSService.

Only the names of servable and method are parsed here.  The gRPC status is OK unless the transport
fails; errors are in the reply, as in the original.
"""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from mindspore_serving import log
from mindspore_serving.core.buffers import Buffer
from mindspore_serving.core.service import Inference, Reply, Request
from mindspore_serving.errors import Code, ServingError
from mindspore_serving.frontends.grpc.calls import CallGate, trailing
from mindspore_serving.frontends.grpc.unary import DirectMethod, Parts
from mindspore_serving.frontends.message_reader import Context
from mindspore_serving.frontends.replies import Replies
from mindspore_serving.frontends.spans import fail
from mindspore_serving.wire import ms_proto

SERVICE = "mindspore.serving.proto.MSService"


def handler(inference: Inference, gate: CallGate) -> Any:
    """Return the handler of the service, to be added to a server; `gate` admits its calls."""

    async def predict_stream(_: object, context: Context) -> AsyncIterator[bytes]:
        call, raw = await gate.admit(context, f"{SERVICE}/PredictStream"), b""
        try:
            request, raw = PredictMessages.begin(call.body, call.timeout)
            request.is_stream = True
            with Replies(inference, request, gate.limits) as replies:
                while (reply := await replies.next()) is not None:
                    if reply.failure is not None:
                        reply.raise_failure()
                    for instance in reply.instances:
                        yield ms_proto.assemble(raw, [instance], None)
        except Exception as error:
            fail(error)
            if isinstance(error, ServingError):
                context.set_trailing_metadata(trailing(error))
            yield PredictMessages.refuse(raw, error)
        finally:
            call.leave()

    direct: Any = DirectMethod(f"{SERVICE}/Predict", PredictMessages(), inference, gate)
    methods = {  # no (de)serializers: raw bytes
        "Predict": grpc.stream_unary_rpc_method_handler(direct),
        "PredictStream": grpc.stream_stream_rpc_method_handler(predict_stream),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


class PredictMessages:
    """Messages of Predict; the state of a call is its servable_spec as it was sent."""

    passed_on = ()

    @staticmethod
    def begin(body: Buffer, timeout: float, _: object = None) -> tuple[Request, bytes]:
        """Return the request in a message, and its servable_spec.  Raises InvalidInputs."""
        spec = ms_proto.peek(body)
        request = Request(spec.name, spec.method, spec.version, "ms_proto", body, timeout=timeout)
        return request, spec.raw

    @staticmethod
    def answer(raw: bytes, reply: Reply) -> Parts:
        """Return the parts of the response for a reply without a failure."""
        return ms_proto.pieces_of_reply(raw, reply.instances, reply.failures())

    @staticmethod
    def refuse(raw: bytes | None, error: Exception) -> bytes:
        """Return the response for an error."""
        if isinstance(error, ServingError):
            return ms_proto.assemble_error(raw or b"", error.code, str(error))
        log.error("a request failed", exc_info=True)
        return ms_proto.assemble_error(raw or b"", Code.FAILED, "Predict failed")
