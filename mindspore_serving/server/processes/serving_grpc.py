"""The gRPC server of a front-end process: calls of methods are its own, others are passed on."""

from dataclasses import replace

from mindspore_serving.frontends import address as addresses
from mindspore_serving.frontends import ms_grpc
from mindspore_serving.frontends.grpc_calls import CallGate
from mindspore_serving.frontends.grpc_server import GrpcServer
from mindspore_serving.frontends.language import LanguageRules
from mindspore_serving.frontends.message_reader import Context
from mindspore_serving.frontends.v2 import service as v2_service
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


def make_grpc_server(parts: Parts, message: ServeGrpc, keys: OwnKeys) -> GrpcServer:
    """Not started yet."""
    options = message.options
    limits = share_of(options, message.num_processes)
    limits = replace(limits, max_connections=-(-limits.max_connections // message.num_processes))
    gate = CallGate(keys.keys, limits, options.max_message, parts.tracer)
    forwarding = Forwarding(message.upstream, _SERVICES, parts.refresh)
    v2 = parts.v2(options, LanguageRules(limits=options.limits))

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
