"""`server.master` of version 2.0: its `context`, start and stop."""

from mindspore_serving.server import context
from mindspore_serving.server.ssl_config import SSLConfig
from mindspore_serving.server.startup import start_grpc_server, start_restful_server, stop

__all__ = ["SSLConfig", "context", "start_grpc_server", "start_restful_server", "stop"]
