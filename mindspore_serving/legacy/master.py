"""`from mindspore_serving import master` of versions 1.1 to 1.4, kept for scripts of that time.

Every function warns and does what its successor in `mindspore_serving.server` does.  The master and
the servables share one server, that of this process: there is no port for the workers of other
processes any more.  Where a script names no address, this listens on 127.0.0.1, not on 0.0.0.0.
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
    """Deprecated: `server.start_grpc_server(f"{ip}:{grpc_port}", ...)`, with its errors."""
    warn_deprecated("master.start_grpc_server", _SINCE, "server.start_grpc_server")
    where = _address(ip, "grpc_port", grpc_port)
    startup.start_grpc_server(where, max_msg_mb_size, ssl_config)


def start_restful_server(
    ip: str | None = None,
    restful_port: int = 5900,
    max_msg_mb_size: int = 100,
    ssl_config: SSLConfig | None = None,
) -> None:
    """Deprecated: `server.start_restful_server(f"{ip}:{restful_port}", ...)`, with its errors."""
    warn_deprecated("master.start_restful_server", _SINCE, "server.start_restful_server")
    where = _address(ip, "restful_port", restful_port)
    startup.start_restful_server(where, max_msg_mb_size, ssl_config)


def start_master_server(ip: str = "127.0.0.1", master_port: int = 6100) -> None:
    """Deprecated: `worker.start_servable` of this process starts its servable here afterwards.

    Opens no port: a `worker.start_servable` in another process cannot join, and says so.
    """
    warn_deprecated("master.start_master_server", _SINCE, "server.start_servables")
    check_str("ip", ip)
    check_port("master_port", master_port)
    log.warning(
        "master.start_master_server opens no port: start the servables in this process, by "
        "server.start_servables; worker processes of their own cannot join"
    )
    startup.open_server()  # from now on this process has a server that servables can be started in


def stop() -> None:
    """Deprecated: `server.stop`."""
    warn_deprecated("master.stop", _SINCE, "server.stop")
    startup.stop()


def _address(ip: str | None, name: str, port: int) -> str:
    check_port(name, port)
    if ip is None:
        log.warning(
            "no 'ip' is given, listening on 127.0.0.1:%s; pass ip='0.0.0.0', as it once was by "
            "default, to let other machines connect",
            port,
        )
        return f"127.0.0.1:{port}"
    return f"{check_str('ip', ip)}:{port}"
