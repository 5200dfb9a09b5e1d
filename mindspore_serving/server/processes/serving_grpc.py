"""The gRPC methods of a front-end process: it answers inference calls, and forwards the others."""

from dataclasses import replace
from typing import Any

from mindspore_serving.frontends import address as addresses
from mindspore_serving.frontends.grpc.http2_server import GrpcMethods, Http2GrpcServer
from mindspore_serving.frontends.mindspore import grpc as ms_grpc
from mindspore_serving.frontends.v2 import service as v2_service
from mindspore_serving.server.grpc_services import make_grpc_methods
from mindspore_serving.server.processes.grpc_forwarding import FrontEndMethods
from mindspore_serving.server.processes.messages import Serve
from mindspore_serving.server.processes.resources import FrontEndResources, LocalKeys, share_of

_LOCAL = (
    f"/{ms_grpc.SERVICE}/Predict",
    f"/{ms_grpc.SERVICE}/PredictStream",
    f"/{v2_service.SERVICE}/ModelInfer",
)


def make_grpc_server(
    resources: FrontEndResources, message: Serve, keys: LocalKeys, server: int
) -> Http2GrpcServer:
    """Create the gRPC server `server`, without starting it."""
    options = message.options
    where = addresses.parse(options.address, "Serving gRPC", allow_unix=True)
    methods = make_front_end_methods(resources, message, keys, server)
    limits = share_of(options, message.num_processes)
    return Http2GrpcServer(where, methods, limits, resources.responses)


def make_front_end_methods(
    resources: FrontEndResources, message: Serve, keys: LocalKeys, server: int
) -> GrpcMethods:
    """Create the gRPC methods of the server `server`."""
    options = replace(message.options, limits=share_of(message.options, message.num_processes))
    v2, tracer = resources.v2(options), resources.tracer
    methods = make_grpc_methods(
        resources.inference, resources.catalog, options, keys=keys.keys, v2=v2, tracer=tracer
    )

    def takes(context: Any) -> bool:
        return keys.is_open or keys.accepts(
            {
                name.encode(): value if isinstance(value, bytes) else value.encode()
                for name, value in context.invocation_metadata()
            }
        )

    methods.handlers = [
        FrontEndMethods(
            methods.handlers,
            _LOCAL,
            resources.master,
            server,
            takes=takes,
            rereads=options.client_shared_memory,
        )
    ]
    return methods
