"""MSService, the original's gRPC protocol: of a request, only the names of servable and method are
read.

The gRPC status is OK unless the transport failed; errors are in the reply, as in the original.
"""

from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
import grpc.aio

from mindspore_serving import log
from mindspore_serving.core.service import Inference, Reply, Request
from mindspore_serving.errors import Code, ServingError
from mindspore_serving.frontends.keys import TEXT, Keys
from mindspore_serving.frontends.replies import Replies, infer
from mindspore_serving.wire import ms_proto

SERVICE = "mindspore.serving.proto.MSService"

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


def handler(inference: Inference, keys: Keys) -> Any:
    """The service, to be added to a server."""

    async def predict(body: bytes, context: Context) -> bytes:
        await _check_key(keys, context)
        raw = b""
        try:
            spec = ms_proto.peek(body)
            raw = spec.raw
            return assemble(raw, await infer(inference, _to_request(spec, body, context)))
        except Exception as error:
            return _to_error(raw, error)

    async def predict_stream(body: bytes, context: Context) -> AsyncIterator[bytes]:
        await _check_key(keys, context)
        raw = b""
        try:
            spec = ms_proto.peek(body)
            raw = spec.raw
            request = _to_request(spec, body, context)
            request.is_stream = True
            with Replies(inference, request) as replies:
                while (reply := await replies.next()) is not None:
                    for one in _pieces(reply):
                        yield assemble(raw, one)
        except Exception as error:
            yield _to_error(raw, error)

    methods = {  # no (de)serializers: raw bytes
        "Predict": grpc.unary_unary_rpc_method_handler(predict),
        "PredictStream": grpc.unary_stream_rpc_method_handler(predict_stream),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def _pieces(reply: Reply) -> list[Reply]:
    """A reply of a stream as replies of one instance each."""
    if reply.failure is not None:
        return [reply]
    return [Reply([instance]) for instance in reply.instances]


def _to_error(raw: bytes, error: Exception) -> bytes:
    if isinstance(error, ServingError):
        return ms_proto.assemble_error(raw, error.code, str(error))
    log.error("answering a request", exc_info=True)
    return ms_proto.assemble_error(raw, Code.FAILED, "Predict failed")


def _to_request(spec: ms_proto.Spec, body: bytes, context: Context) -> Request:
    timeout = _timeout(context)
    return Request(spec.name, spec.method, spec.version, "ms_proto", body, timeout=timeout)


async def _check_key(keys: Keys, context: Context) -> None:
    """End the call unless its metadata has a key, or none is needed."""
    if not keys:
        return
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            given = value if isinstance(value, bytes) else value.encode()
            if keys.accept(given):
                return
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, TEXT)


def assemble(raw: bytes, reply: Reply) -> bytes:
    """`reply` as a PredictReply."""
    if reply.failure is not None:
        return ms_proto.assemble_error(raw, reply.failure.code, str(reply.failure))
    return ms_proto.assemble(raw, reply.instances, reply.failures())


def _timeout(context: Context) -> float | None:
    remaining = context.time_remaining()
    return None if remaining is None or remaining > 1e6 else max(0.0, remaining)
