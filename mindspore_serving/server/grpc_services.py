"""The gRPC methods of a server, which its gRPC listener and its HTTP listener offer alike."""

from collections.abc import Callable

from mindspore_serving.core.service import Control, Inference
from mindspore_serving.frontends.grpc import health as grpc_health
from mindspore_serving.frontends.grpc.calls import CallGate
from mindspore_serving.frontends.grpc.health import HealthService
from mindspore_serving.frontends.grpc.http2_server import GrpcMethods
from mindspore_serving.frontends.grpc.reflection import FILES, ReflectionService
from mindspore_serving.frontends.keys import Keys
from mindspore_serving.frontends.mindspore import grpc as ms_grpc
from mindspore_serving.frontends.tenants.audit import AuditLog
from mindspore_serving.frontends.v2 import service as v2_service
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.server.front_ends import FrontEndOptions
from mindspore_serving.tracing.request_span import Tracer


def make_grpc_methods(
    inference: Inference,
    control: Control,
    options: FrontEndOptions,
    *,
    keys: Keys,
    v2: V2,
    tracer: Tracer | None,
    audit: Callable[[], AuditLog | None] = lambda: None,
) -> GrpcMethods:
    """Create the methods of the classic protocol, of v2, health and reflection."""
    limits, max_message = options.limits, options.max_message
    health = HealthService(control, max_message)
    gate = CallGate(keys, limits, max_message, tracer, audit)
    services = {
        ms_grpc.SERVICE: ms_grpc.handler(inference, gate),
        v2_service.SERVICE: v2_service.handler(v2, gate),
        grpc_health.SERVICE: health.handler(),
    }
    handlers = [*services.values(), *ReflectionService(services, gate).handlers()]
    closing = [health.close, gate.close]
    return GrpcMethods(
        handlers, max_message, closing, max_metadata=limits.max_metadata, files=FILES
    )
