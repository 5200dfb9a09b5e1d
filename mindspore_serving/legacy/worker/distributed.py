"""`worker.distributed` of versions 1.1 to 1.4, kept for old scripts.

Every function warns and calls its successor in `mindspore_serving.server.distributed`.
"""

from collections.abc import Sequence

from mindspore_serving.servable.check import check_port, check_str, warn_deprecated
from mindspore_serving.servable.model import Model
from mindspore_serving.server import distributed

__all__ = [
    "declare_distributed_servable",
    "start_distributed_servable",
    "start_distributed_servable_in_master",
    "startup_worker_agents",
]

_SINCE = "1.3.0"
_Files = Sequence[str | Sequence[str]]


def declare_distributed_servable(
    rank_size: int,
    stage_size: int,
    with_batch_dim: bool = True,
    without_batch_dim_inputs: int | Sequence[int] | None = None,
) -> Model:
    """Declare a distributed servable.  Deprecated: use `distributed.declare_servable`."""
    warn_deprecated("declare_distributed_servable", _SINCE, "distributed.declare_servable")
    return distributed.declare_servable(
        rank_size, stage_size, with_batch_dim, without_batch_dim_inputs
    )


def start_distributed_servable_in_master(  # noqa: PLR0917  (the order is the original's)
    servable_directory: str,
    servable_name: str,
    rank_table_json_file: str,
    version_number: int = 1,
    worker_ip: str = "127.0.0.1",
    worker_port: int = 6200,
    wait_agents_time_in_seconds: int = 0,
) -> None:
    """Start a distributed servable, whose agents connect to `worker_ip:worker_port`.

    Deprecated: use `distributed.start_servable`.
    """
    warn_deprecated("start_distributed_servable_in_master", _SINCE, "distributed.start_servable")
    distributed.start_servable(
        servable_directory,
        servable_name,
        rank_table_json_file,
        version_number,
        _address(worker_ip, worker_port),
        wait_agents_time_in_seconds,
    )


def start_distributed_servable(  # noqa: PLR0917  (the order is the original's)
    servable_directory: str,
    servable_name: str,
    rank_table_json_file: str,
    version_number: int = 1,
    worker_ip: str = "127.0.0.1",
    worker_port: int = 6200,
    master_ip: str = "127.0.0.1",
    master_port: int = 6100,
    wait_agents_time_in_seconds: int = 0,
) -> None:
    """Start a distributed servable; the master's address is not used.

    Deprecated: use `distributed.start_servable`.
    """
    check_str("master_ip", master_ip)
    check_port("master_port", master_port)
    start_distributed_servable_in_master(
        servable_directory,
        servable_name,
        rank_table_json_file,
        version_number,
        worker_ip,
        worker_port,
        wait_agents_time_in_seconds,
    )


def startup_worker_agents(  # noqa: PLR0917  (the order is the original's)
    worker_ip: str,
    worker_port: int,
    model_files: str | _Files,
    group_config_files: str | _Files | None = None,
    agent_start_port: int = 7000,
    agent_ip: str | None = None,
    rank_start: int | None = None,
) -> None:
    """Start the agents of a distributed servable.

    Deprecated: use `distributed.startup_agents(f"{worker_ip}:{worker_port}", ...)`.
    """
    warn_deprecated("startup_worker_agents", _SINCE, "distributed.startup_agents")
    distributed.startup_agents(
        _address(worker_ip, worker_port),
        model_files,
        group_config_files,
        agent_start_port,
        agent_ip,
        rank_start,
    )


def _address(ip: str, port: int) -> str:
    check_port("worker_port", port)
    return f"{check_str('worker_ip', ip)}:{port}"
