"""gRPC service of the original, MSService.

Only the names of servable and method are parsed here.  The gRPC status is OK unless the transport
fails; errors are in the reply, as in the original.
"""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from mindspore_serving import log
from mindspore_serving.core.sequences import SequenceStep
from mindspore_serving.core.service import Inference, Request
from mindspore_serving.errors import Code, ServingError
from mindspore_serving.frontends.grpc.calls import AdmittedCall, CallGate, sequence_step, trailing
from mindspore_serving.frontends.message_reader import Context
from mindspore_serving.frontends.replies import Replies, infer
from mindspore_serving.frontends.spans import fail
from mindspore_serving.wire import ms_proto

SERVICE = "mindspore.serving.proto.MSService"


def handler(inference: Inference, gate: CallGate) -> Any:
    """Return the handler of the service, to be added to a server; `gate` admits its calls."""

    async def predict(_: object, context: Context) -> bytes:
        call, raw = await gate.admit(context, f"{SERVICE}/Predict"), b""
        try:
            spec = ms_proto.peek(call.body)
            raw = spec.raw
            reply = await infer(inference, _to_request(spec, call, sequence_step(context)))
            if reply.failure is not None:
                reply.raise_failure()
            return ms_proto.assemble(raw, reply.instances, reply.failures())
        except Exception as error:
            return _to_error(raw, error, context)
        finally:
            call.leave()

    async def predict_stream(_: object, context: Context) -> AsyncIterator[bytes]:
        call, raw = await gate.admit(context, f"{SERVICE}/PredictStream"), b""
        try:
            spec = ms_proto.peek(call.body)
            raw = spec.raw
            request = _to_request(spec, call, sequence_step(context))
            request.is_stream = True
            with Replies(inference, request, gate.limits) as replies:
                while (reply := await replies.next()) is not None:
                    if reply.failure is not None:
                        reply.raise_failure()
                    for instance in reply.instances:
                        yield ms_proto.assemble(raw, [instance], None)
        except Exception as error:
            yield _to_error(raw, error, context)
        finally:
            call.leave()

    methods = {  # no (de)serializers: raw bytes
        "Predict": grpc.stream_unary_rpc_method_handler(predict),
        "PredictStream": grpc.stream_stream_rpc_method_handler(predict_stream),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def _to_error(raw: bytes, error: Exception, context: Context) -> bytes:
    fail(error)
    if not isinstance(error, ServingError):
        log.error("a request failed", exc_info=True)
        return ms_proto.assemble_error(raw, Code.FAILED, "Predict failed")
    context.set_trailing_metadata(trailing(error))
    return ms_proto.assemble_error(raw, error.code, str(error))


def _to_request(spec: ms_proto.Spec, call: AdmittedCall, sequence: SequenceStep | None) -> Request:
    return Request(
        spec.name,
        spec.method,
        spec.version,
        "ms_proto",
        call.body,
        timeout=call.timeout,
        sequence=sequence,
    )
