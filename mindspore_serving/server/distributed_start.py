"""Starting the worker of a distributed servable, or the agents of a machine, from a script.

Arguments are checked already.  Agents have a supervisor, and a `Lifetime` of their own.
"""

import atexit
from pathlib import Path

import msgspec

from mindspore_serving.core.deployment import Deployment, GangOptions
from mindspore_serving.distributed import rank_table
from mindspore_serving.distributed.agents import AgentSupervisor
from mindspore_serving.distributed.local_ranks import AgentOptions
from mindspore_serving.errors import StartError, reason
from mindspore_serving.frontends import address as addresses
from mindspore_serving.servable.repository import check_servable
from mindspore_serving.server import startup
from mindspore_serving.server.lifetime import Lifetime

TAG = "Distributed server"  # names the address in errors
_supervisors: list[AgentSupervisor] = []
_lifetime = Lifetime(lambda: stop_agents())


def start_worker(
    directory: str, name: str, version: int, table_path: str, options: GangOptions
) -> None:
    """Start a distributed servable and wait for its agents, see `distributed.start_servable`."""
    addresses.parse(options.address, TAG, allow_unix=False)
    check_servable(directory, name, {})
    deployment = Deployment(
        directory,
        name,
        version_number=version,
        num_parallel_workers=1,
        retry=False,
        heartbeat_timeout=options.heartbeat_timeout,
        stage_timeout=options.stage_timeout,
        gang=msgspec.structs.replace(options, rank_table=_read_table(table_path)),
    )
    startup.deploy([deployment])


def start_agents(options: AgentOptions) -> None:
    """Start the agents of this machine and keep them running, see `distributed.startup_agents`."""
    addresses.parse(options.address, TAG, allow_unix=False)
    supervisor = AgentSupervisor(options, _end_if_all_are_over)
    _supervisors.append(supervisor)
    _lifetime.begin()
    try:
        ranks = supervisor.start()
    except BaseException as error:
        print(f"Failed to start agents, {error}", flush=True)
        stop_agents()
        raise
    devices = ", ".join(f"rank {rank.number} on device {rank.device_id}" for rank in ranks)
    print(f"Success to start agents, {devices}", flush=True)


def stop_agents() -> None:
    """Kill all agents of this process, and let the process exit."""
    supervisors = list(_supervisors)
    _supervisors.clear()
    try:
        for supervisor in supervisors:
            supervisor.stop()
    finally:
        _lifetime.over()


def _end_if_all_are_over() -> None:
    if all(supervisor.is_over for supervisor in _supervisors):
        _lifetime.end()


atexit.register(stop_agents)


def _read_table(path: str) -> str:
    """Read and check a rank table; return its text.  Raises StartError or InvalidInputs."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(rank_table.MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise StartError(f"The rank table '{path}' cannot be read: {reason(error)}") from error
    rank_table.parse(text)
    return text
