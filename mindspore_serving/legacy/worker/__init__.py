"""`from mindspore_serving import worker` of versions 1.1 to 1.4, kept for old scripts.

    worker.start_servable_in_master(servable_dir, "lenet", device_id=0)

Every function warns and calls its successor in `mindspore_serving.server`. An old
servable_config.py imports `register` and `distributed` from here, which loads no server.
"""

from mindspore_serving.errors import StartError
from mindspore_serving.servable.check import check_int, check_port, check_str, warn_deprecated
from mindspore_serving.server import startup
from mindspore_serving.server.config import ServableStartConfig
from mindspore_serving.worker import distributed, register

__all__ = ["distributed", "register", "start_servable", "start_servable_in_master", "stop"]

_SINCE = "1.3.0"


def start_servable_in_master(
    servable_directory: str,
    servable_name: str,
    version_number: int = 0,
    device_type: str | None = None,
    device_id: int = 0,
) -> None:
    """Start one servable on one device; return when it can be called.

    Deprecated: use `server.start_servables`, with the same errors.
    """
    warn_deprecated("worker.start_servable_in_master", _SINCE, "server.start_servables")
    check_int("device_id", device_id, 0)
    location = (servable_directory, servable_name)
    startup.start_servables(ServableStartConfig(*location, device_id, version_number, device_type))


def start_servable(  # noqa: PLR0917  (the order is the original's)
    servable_directory: str,
    servable_name: str,
    version_number: int = 0,
    device_type: str | None = None,
    device_id: int = 0,
    master_ip: str = "0.0.0.0",
    master_port: int = 6100,
    worker_ip: str = "0.0.0.0",
    worker_port: int = 6200,
) -> None:
    """Start one servable in a process that has started a master.  Deprecated.

    The addresses are checked and not used. Raises RuntimeError if this process called no start
    function of `master`: a worker cannot join the master of another process.
    """
    warn_deprecated("worker.start_servable", _SINCE, "server.start_servables")
    check_str("master_ip", master_ip)
    check_port("master_port", master_port)
    check_str("worker_ip", worker_ip)
    check_port("worker_port", worker_port)
    if not startup.is_running():
        raise StartError(
            f"worker.start_servable: the master at {master_ip}:{master_port} is not in this "
            "process, and workers cannot join another one any more. Start servable "
            f"'{servable_name}' in the script of the master instead: "
            f"server.start_servables(server.ServableStartConfig({servable_directory!r}, "
            f"{servable_name!r}, device_ids={device_id})); it starts the worker processes itself"
        )
    location = (servable_directory, servable_name)
    start_servable_in_master(*location, version_number, device_type, device_id)


def stop() -> None:
    """Stop the server.  Deprecated: use `server.stop`."""
    warn_deprecated("worker.stop", _SINCE, "server.stop")
    startup.stop()
