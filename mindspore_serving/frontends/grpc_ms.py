"""MSService: the original's gRPC protocol.  Bytes in, bytes out; only the servable's name is read.

The gRPC status is OK unless the transport failed; errors are in the reply, as they always were.
"""

import asyncio
from typing import Any

import grpc
import grpc.aio

from mindspore_serving import log
from mindspore_serving.core.service import Inference, Reply, Request
from mindspore_serving.errors import Code, ServingError
from mindspore_serving.frontends.waiting import infer
from mindspore_serving.wire import ms_proto

SERVICE = "mindspore.serving.proto.MSService"


def handler(inference: Inference) -> Any:
    """The service, to be added to a server."""

    async def predict(body: bytes, context: "grpc.aio.ServicerContext[Any, Any]") -> bytes:
        raw = b""
        try:
            spec = ms_proto.peek(body)
            raw = spec.raw
            request = Request(
                spec.name,
                spec.method,
                spec.version,
                "ms_proto",
                body,
                timeout=_timeout(context),
            )
            reply = await infer(inference, request)
            return assemble(raw, reply)
        except ServingError as error:
            return ms_proto.assemble_error(raw, error.code, str(error))
        except asyncio.CancelledError:
            raise
        except Exception:
            log.error("answering a request", exc_info=True)
            return ms_proto.assemble_error(raw, Code.FAILED, "Predict failed")

    method = grpc.unary_unary_rpc_method_handler(predict)  # no (de)serializers: raw bytes
    return grpc.method_handlers_generic_handler(SERVICE, {"Predict": method})


def assemble(raw: bytes, reply: Reply) -> bytes:
    """`reply` as a PredictReply."""
    if reply.failure is not None:
        return ms_proto.assemble_error(raw, reply.failure.code, str(reply.failure))
    return ms_proto.assemble(raw, reply.instances, reply.failures())


def _timeout(context: "grpc.aio.ServicerContext[Any, Any]") -> float | None:
    remaining = context.time_remaining()
    return None if remaining is None or remaining > 1e6 else max(0.0, remaining)
