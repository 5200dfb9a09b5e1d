"""The gRPC server of a front-end process: calls of methods are its own, others are passed on."""

from dataclasses import replace

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.frontends import address as addresses
from mindspore_serving.frontends.grpc import health as grpc_health
from mindspore_serving.frontends.grpc import reflection as grpc_reflection
from mindspore_serving.frontends.grpc.calls import CallGate, OpenCalls
from mindspore_serving.frontends.grpc.server import GrpcServer
from mindspore_serving.frontends.message_reader import Context
from mindspore_serving.frontends.mindspore import grpc as ms_grpc
from mindspore_serving.frontends.v2 import service as v2_service
from mindspore_serving.frontends.v2.stream import MAX_CALLS
from mindspore_serving.server.processes.grpc_forwarding import Choosing, Forwarding
from mindspore_serving.server.processes.messages import ServeGrpc
from mindspore_serving.server.processes.parts import OwnKeys, Parts, share_of

_INFER = f"/{v2_service.SERVICE}/ModelInfer"
_PREDICT = (f"/{ms_grpc.SERVICE}/Predict", f"/{ms_grpc.SERVICE}/PredictStream")
_SERVICES = (
    ms_grpc.SERVICE,
    v2_service.SERVICE,
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)


def calls_of(limits: ServerLimits, num_processes: int) -> dict[str, OpenCalls]:
    """How many calls may be passed on at once, by the end of the method's name: no more than the
    master takes, so that it refuses none whose client has few.
    """
    of_master = {
        "/ModelStreamInfer": MAX_CALLS,
        "/Watch": grpc_health.MAX_WATCHES,
        "/ServerReflectionInfo": grpc_reflection.MAX_CALLS,
    }
    found = {name: OpenCalls(most // num_processes) for name, most in of_master.items()}
    return {**found, "": OpenCalls(limits.max_streams)}


def make_grpc_server(parts: Parts, message: ServeGrpc, keys: OwnKeys) -> GrpcServer:
    """Not started yet."""
    options = message.options
    limits = share_of(options, message.num_processes)
    count = message.num_processes
    limits = replace(
        limits,
        max_connections=-(-limits.max_connections // count),
        max_connections_per_address=-(-limits.max_connections_per_address // count),
    )
    gate = CallGate(keys.keys, limits, options.max_message, parts.tracer)
    forwarding = Forwarding(message.upstream, _SERVICES, parts.refresh, calls_of(limits, count))
    v2 = parts.v2(options)

    def takes(context: Context) -> bool:
        return keys.is_open or keys.accepts(
            {
                name.encode(): value if isinstance(value, bytes) else value.encode()
                for name, value in context.invocation_metadata() or ()
            }
        )

    own = ms_grpc.handler(parts.inference, gate), v2_service.handler(v2, gate)
    handlers = [
        *(Choosing(one, (*_PREDICT, _INFER), forwarding, takes) for one in own),
        forwarding,
    ]
    where = addresses.parse(options.address, "Serving gRPC", allow_unix=False)
    return GrpcServer(where, handlers, limits, [gate.close], parts.responses, shares_port=True)
