"""Communication of ranks by MindSpore: HCCL on Ascend, its own collectives between CPUs.

Ranks that share layers meet through MindSpore's scheduler, a process that the first of them starts,
or msrun; those of each pipeline stage by themselves, as there is one group between CPUs.  MindSpore
connects a process once and for all, so it can compute with the ranks that it met first alone.
HCCL is not verified on hardware.
"""

import os
import socket
import time
from dataclasses import dataclass

from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import StartError
from mindspore_serving.llm.parallel.group import RankGroup
from mindspore_serving.llm.parallel.msrun import MsrunRole, read_role
from mindspore_serving.process.child import Child, Program, exit_text

MODULE = "mindspore_serving.llm.runtimes.mindspore.scheduler_process"
HOST = "127.0.0.1"
CONNECT_SECONDS = 120  # for all ranks to connect
POLL_SECONDS = 0.05
SILENT_SECONDS = 300  # after which the scheduler misses the heartbeats of a rank
NO_PORT = 1 << 16
# Seconds between attempts; 3 to 5 by default.
RETRIES = {"MS_RETRY_INTERVAL_LOWER": "1", "MS_RETRY_INTERVAL_UPPER": "1"}


@dataclass(slots=True)
class _Connection:
    """Port of the scheduler that this process has met, 0 before, and the process on rank 0."""

    port: int = 0
    scheduler: Child | None = None


_connection = _Connection()  # of this process, as MindSpore's is


def world_group(*, is_on_cpu: bool) -> str:
    """Return the name of the group of all ranks that are connected."""
    return "mccl_world_group" if is_on_cpu else "hccl_world_group"


def connect(peers: RankGroup, device: int) -> None:
    """Connect this process, on `device`, with its `peers`, which call this at the same time.

    Raises StartError if they cannot be connected, or if this process has met other ranks before.
    """
    port = _connection.port
    if peers.minimum(port) != -peers.minimum(-port):
        raise StartError(
            "this process has computed with other ranks of MindSpore before, which it can do once: "
            "open the model in a new process"
        )
    if port:
        return
    role = read_role()
    port = _meet_scheduler(peers, device) if role is None else _meet_scheduler_of(role, peers)
    _connection.port = port  # also if it fails: MindSpore does not try twice
    initialise()


def _meet_scheduler(peers: RankGroup, device: int) -> int:
    """Start the scheduler on rank 0; return its port, which the environment has now."""
    port = NO_PORT
    if peers.rank == 0:
        port = find_port()
        _connection.scheduler = start_scheduler(peers.size, port)
    port = peers.minimum(port)
    os.environ.update(cluster_variables(peers.rank, peers.size, port, device))
    return port


def _meet_scheduler_of(role: MsrunRole, peers: RankGroup) -> int:
    """Wait until the scheduler that msrun has started listens; return its port."""
    if role.size != peers.size:
        raise StartError(
            f"msrun has connected {role.size} ranks, but tensor_parallel is {peers.size}: leave "
            "pipeline_parallel out, or start without msrun"
        )
    deadline = time.monotonic() + CONNECT_SECONDS
    while peers.rank == 0 and not _is_taken(role.port, role.host):
        if time.monotonic() > deadline:
            raise StartError(f"the scheduler of msrun does not listen at port {role.port}")
        time.sleep(POLL_SECONDS)
    peers.minimum(0)
    os.environ.update(RETRIES | os.environ)
    return role.port


def start_scheduler(size: int, port: int) -> Child:
    """Start the scheduler of `size` ranks, and wait until it listens.

    Ranks give up 30 seconds after they have looked for a scheduler that is still being loaded.
    Raises StartError.
    """
    variables = cluster_variables(0, size, port, 0) | {"MS_ROLE": "MS_SCHED"}
    scheduler = Child(Program(MODULE, variables=variables, stdout=2))
    deadline = time.monotonic() + CONNECT_SECONDS
    while not _is_taken(port):
        status = scheduler.poll()
        if status is not None or time.monotonic() > deadline:
            scheduler.close()
            reason = "in time" if status is None else f"and {exit_text(status)}"
            raise StartError(f"the scheduler of the ranks did not listen at port {port} {reason}")
        time.sleep(POLL_SECONDS)
    return scheduler


def initialise() -> None:
    """Connect by the variables of the environment.  Raises StartError."""
    from mindspore.communication import init

    try:
        init()
    except Exception as error:
        raise StartError(f"the ranks did not connect: {error_text(error)}") from error


def cluster_variables(rank: int, size: int, port: int, device: int) -> dict[str, str]:
    """Return the variables by which rank `rank` of `size` meets the scheduler at `port`."""
    return {
        "MS_ROLE": "MS_WORKER",
        "MS_WORKER_NUM": str(size),
        "MS_NODE_ID": str(rank),
        "MS_WORKER_IP": HOST,
        "MS_SCHED_HOST": HOST,
        "MS_SCHED_PORT": str(port),
        "MS_TOPO_TIMEOUT": str(CONNECT_SECONDS),
        # Ours are faster.  With MS_DISABLE_HEARTBEAT a rank disconnects while its thread may still
        # be reading, which ends its process by SIGSEGV.
        "MS_NODE_TIMEOUT": str(SILENT_SECONDS),
        **RETRIES,
        "RANK_ID": str(rank),
        "RANK_SIZE": str(size),
        "DEVICE_ID": str(device),
    }


def _is_taken(port: int, host: str = HOST) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def find_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
