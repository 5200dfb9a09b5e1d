"""The gRPC services of a server, which its gRPC listener and its HTTP listener offer alike."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mindspore_serving.core.service import Control, Inference
from mindspore_serving.frontends.grpc import health as grpc_health
from mindspore_serving.frontends.grpc.calls import CallGate
from mindspore_serving.frontends.grpc.health import HealthService
from mindspore_serving.frontends.grpc.http2_server import GrpcMethods
from mindspore_serving.frontends.grpc.reflection import FILES, ReflectionService
from mindspore_serving.frontends.grpc.unsent import UnsentReplies
from mindspore_serving.frontends.keys import Keys
from mindspore_serving.frontends.mindspore import grpc as ms_grpc
from mindspore_serving.frontends.v2 import service as v2_service
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.server.front_ends import FrontEndOptions
from mindspore_serving.tracing.request_span import Tracer


@dataclass(frozen=True, slots=True)
class GrpcServices:
    """Handlers of the services; `closing` are called first when their server stops.

    `unsent` counts the answers of streams that clients have not received.
    """

    handlers: list[Any]
    closing: list[Callable[[], None]]
    unsent: UnsentReplies
    max_message: int  # bytes
    max_metadata: int  # bytes

    def methods(self) -> GrpcMethods:
        """Return the methods for a server on our own HTTP/2."""
        return GrpcMethods(
            self.handlers,
            self.max_message,
            self.closing,
            max_metadata=self.max_metadata,
            files=FILES,
        )


def make_grpc_services(
    inference: Inference,
    control: Control,
    options: FrontEndOptions,
    *,
    keys: Keys,
    v2: V2,
    tracer: Tracer | None,
) -> GrpcServices:
    """Create the services of the classic protocol, of v2, health and reflection."""
    limits, max_message = options.limits, options.max_message
    health = HealthService(control, max_message)
    gate = CallGate(keys, limits, max_message, tracer)
    unsent = UnsentReplies(limits.max_unsent_memory)
    services = {
        ms_grpc.SERVICE: ms_grpc.handler(inference, gate),
        v2_service.SERVICE: v2_service.handler(v2, gate, unsent),
        grpc_health.SERVICE: health.handler(),
    }
    handlers = [*services.values(), *ReflectionService(services, gate).handlers()]
    closing = [health.close, gate.close]
    return GrpcServices(handlers, closing, unsent, max_message, limits.max_metadata)
