"""`from mindspore_serving import master` of versions 1.1 to 1.4, kept for old scripts.

Every function warns and calls its successor in `mindspore_serving.server`. The master and the
servables share the server of this process: worker processes have no port to connect to. Without an
address it listens on 127.0.0.1, not on 0.0.0.0.
"""

from mindspore_serving import log
from mindspore_serving.servable.check import check_port, check_str, warn_deprecated
from mindspore_serving.server import context, startup
from mindspore_serving.server.ssl_config import SSLConfig

__all__ = [
    "SSLConfig",
    "context",
    "start_grpc_server",
    "start_master_server",
    "start_restful_server",
    "stop",
]

_SINCE = "1.3.0"


def start_grpc_server(
    ip: str | None = None,
    grpc_port: int = 5500,
    max_msg_mb_size: int = 100,
    ssl_config: SSLConfig | None = None,
) -> None:
    """Start the gRPC server.  Deprecated: use `server.start_grpc_server`, with its errors."""
    warn_deprecated("master.start_grpc_server", _SINCE, "server.start_grpc_server")
    address = _address(ip, "grpc_port", grpc_port)
    startup.start_grpc_server(address, max_msg_mb_size, ssl_config)


def start_restful_server(
    ip: str | None = None,
    restful_port: int = 5900,
    max_msg_mb_size: int = 100,
    ssl_config: SSLConfig | None = None,
) -> None:
    """Start the REST server.  Deprecated: use `server.start_restful_server`, with its errors."""
    warn_deprecated("master.start_restful_server", _SINCE, "server.start_restful_server")
    address = _address(ip, "restful_port", restful_port)
    startup.start_restful_server(address, max_msg_mb_size, ssl_config)


def start_master_server(ip: str = "127.0.0.1", master_port: int = 6100) -> None:
    """Create a server, in which `worker.start_servable` of this process starts its servable.

    Deprecated. It opens no port: a `worker.start_servable` in another process cannot join, and
    raises an error.
    """
    warn_deprecated("master.start_master_server", _SINCE, "server.start_servables")
    check_str("ip", ip)
    check_port("master_port", master_port)
    log.warning(
        "master.start_master_server opens no port: start the servables in this process, by "
        "server.start_servables; separate worker processes cannot join"
    )
    startup.open_server()  # servables of this process can now be started in it


def stop() -> None:
    """Stop the server.  Deprecated: use `server.stop`."""
    warn_deprecated("master.stop", _SINCE, "server.stop")
    startup.stop()


def _address(ip: str | None, name: str, port: int) -> str:
    check_port(name, port)
    if ip is None:
        log.warning(
            "no 'ip' is given, so the server listens on 127.0.0.1:%s; pass ip='0.0.0.0', the old "
            "default, to let other machines connect",
            port,
        )
        return f"127.0.0.1:{port}"
    return f"{check_str('ip', ip)}:{port}"
