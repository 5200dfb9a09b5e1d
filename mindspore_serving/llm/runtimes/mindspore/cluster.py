"""Communication of ranks by MindSpore: HCCL on Ascend, its own collectives between CPUs.

Processes meet through MindSpore's scheduler, a process that rank 0 starts.  MindSpore connects a
process once and for all, so a process can compute with the ranks that it met first alone.
HCCL is not verified on hardware.
"""

import os
import socket
from dataclasses import dataclass

from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import StartError
from mindspore_serving.llm.parallel.group import RankGroup
from mindspore_serving.llm.runtimes.mindir.library import CPU
from mindspore_serving.process.child import Child, Program

MODULE = "mindspore_serving.llm.runtimes.mindspore.scheduler_process"
HOST = "127.0.0.1"
CONNECT_SECONDS = 120  # for all ranks to connect
NO_PORT = 1 << 16


@dataclass(slots=True)
class _Connection:
    """Port of the scheduler that this process has met, 0 before, and the process on rank 0."""

    port: int = 0
    scheduler: Child | None = None


_connection = _Connection()  # of this process, as MindSpore's is


def world_group(target: str) -> str:
    """Return the name of the group of all ranks on device `target`."""
    return "mccl_world_group" if target == CPU else "hccl_world_group"


def connect(everyone: RankGroup, target: str) -> None:
    """Connect this process with all ranks, which call this at the same time.

    Raises StartError if they cannot be connected, or if this process has met other ranks before.
    """
    port = _connection.port
    if everyone.minimum(port) != -everyone.minimum(-port):
        raise StartError(
            "this process has computed with other ranks of MindSpore before, which it can do once: "
            "open the model in a new process"
        )
    if port:
        return
    if "MS_ROLE" in os.environ:
        raise StartError(
            f"MS_ROLE is {os.environ['MS_ROLE']!r}, as msrun sets it, but the server starts its "
            "ranks itself: start it without msrun, and unset MS_ROLE"
        )
    port = everyone.minimum(_free_port() if everyone.rank == 0 else NO_PORT)
    variables = cluster_variables(everyone.rank, everyone.size, port)
    if everyone.rank == 0:
        scheduler = variables | {"MS_ROLE": "MS_SCHED"}
        _connection.scheduler = Child(Program(MODULE, variables=scheduler, stdout=2))
    os.environ.update(variables)
    from mindspore.communication import init

    try:
        init()
    except Exception as error:
        raise StartError(f"the ranks did not connect: {error_text(error)}") from error
    _connection.port = port


def cluster_variables(rank: int, size: int, port: int) -> dict[str, str]:
    """Return the variables by which rank `rank` of `size` meets the scheduler at `port`."""
    return {
        "MS_ROLE": "MS_WORKER",
        "MS_WORKER_NUM": str(size),
        "MS_NODE_ID": str(rank),
        "MS_WORKER_IP": HOST,
        "MS_SCHED_HOST": HOST,
        "MS_SCHED_PORT": str(port),
        "MS_TOPO_TIMEOUT": str(CONNECT_SECONDS),
        "MS_DISABLE_HEARTBEAT": "1",  # ours are faster
        "RANK_ID": str(rank),
        "RANK_SIZE": str(size),
        "DEVICE_ID": str(rank),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
