"""The gRPC server of a front-end process: it answers inference calls, and forwards the rest."""

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
from mindspore_serving.server.processes.grpc_forwarding import CallRouter, Forwarder
from mindspore_serving.server.processes.messages import ServeGrpc
from mindspore_serving.server.processes.resources import FrontEndResources, LocalKeys, share_of

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
    """Return limits of concurrent forwarded calls, by suffix of the method's name.

    Together the front ends forward no more calls than the master accepts, so that the master does
    not refuse a call of a client that has few.
    """
    of_master = {
        "/ModelStreamInfer": MAX_CALLS,
        "/Watch": grpc_health.MAX_WATCHES,
        "/ServerReflectionInfo": grpc_reflection.MAX_CALLS,
    }
    shares = {name: OpenCalls(limit // num_processes) for name, limit in of_master.items()}
    return {**shares, "": OpenCalls(limits.max_streams)}


def make_grpc_server(
    resources: FrontEndResources, message: ServeGrpc, keys: LocalKeys
) -> GrpcServer:
    """Create the gRPC server, without starting it."""
    options = message.options
    limits = share_of(options, message.num_processes)
    count = message.num_processes
    limits = replace(
        limits,
        max_connections=-(-limits.max_connections // count),
        max_connections_per_address=-(-limits.max_connections_per_address // count),
    )
    gate = CallGate(keys.keys, limits, options.max_message, resources.tracer)
    forwarding = Forwarder(message.upstream, _SERVICES, resources.refresh, calls_of(limits, count))
    v2 = resources.v2(options)

    def takes(context: Context) -> bool:
        return keys.is_open or keys.accepts(
            {
                name.encode(): value if isinstance(value, bytes) else value.encode()
                for name, value in context.invocation_metadata() or ()
            }
        )

    local = ms_grpc.handler(resources.inference, gate), v2_service.handler(v2, gate)
    handlers = [
        *(CallRouter(handler, (*_PREDICT, _INFER), forwarding, takes) for handler in local),
        forwarding,
    ]
    where = addresses.parse(options.address, "Serving gRPC", allow_unix=False)
    return GrpcServer(where, handlers, limits, [gate.close], resources.responses, shares_port=True)
