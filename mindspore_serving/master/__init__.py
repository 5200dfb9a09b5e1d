"""Master process: which worker gets a request, and what happens when a worker dies."""

from mindspore_serving import old_paths

__getattr__ = old_paths.forward(
    "master",
    (
        "SSLConfig",
        "context",
        "start_grpc_server",
        "start_master_server",
        "start_restful_server",
        "stop",
    ),
)  # of versions 1.1 to 1.4
