"""Starts the worker of a distributed servable, or the agents of a machine, in a script's process.

Arguments are checked already.  Agents have a supervisor on a thread, and a `Lifetime` of their own.
"""

import atexit
import threading
from pathlib import Path

import msgspec

from mindspore_serving.core.deployment import Deployment, GangOptions
from mindspore_serving.distributed import rank_table
from mindspore_serving.distributed.agents import AgentSupervisor
from mindspore_serving.distributed.places import AgentOptions
from mindspore_serving.errors import StartError
from mindspore_serving.frontends import address as addresses
from mindspore_serving.servable.repository import check_servable
from mindspore_serving.server import startup
from mindspore_serving.server.lifetime import Lifetime

TAG = "Distributed server"  # of the address, in errors
_supervisors: dict[AgentSupervisor, threading.Thread] = {}
_lifetime = Lifetime(lambda: stop_agents())


def start_worker(
    directory: str, name: str, version: int, table_path: str, options: GangOptions
) -> None:
    """Start the servable with the rank table of a file, and wait for its agents; see
    `distributed.start_servable`."""
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
    """Start the agents of this machine, and keep them running; see `distributed.startup_agents`."""
    addresses.parse(options.address, TAG, allow_unix=False)
    supervisor = AgentSupervisor(options)

    def supervise() -> None:
        supervisor.supervise()
        if all(one is supervisor or not thread.is_alive() for one, thread in _supervisors.items()):
            _lifetime.end()

    thread = threading.Thread(target=supervise, name="agents", daemon=True)
    _supervisors[supervisor] = thread
    _lifetime.begin()
    try:
        ranks = supervisor.start()
    except BaseException as error:
        print(f"Failed to start agents, {error}", flush=True)
        stop_agents()
        raise
    thread.start()
    places = ", ".join(f"rank {rank.number} on device {rank.device_id}" for rank in ranks)
    print(f"Success to start agents, {places}", flush=True)


def stop_agents() -> None:
    """End all agents of this process, and let it end."""
    supervisors = list(_supervisors.items())
    _supervisors.clear()
    try:
        for supervisor, _ in supervisors:
            supervisor.stop()
        for _, thread in supervisors:
            if thread.ident is not None:
                thread.join()
    finally:
        _lifetime.over()


atexit.register(stop_agents)


def _read_table(path: str) -> str:
    """The text of a rank table that can be read.  Raises StartError or InvalidInputs."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(rank_table.MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise StartError(f"The rank table '{path}' cannot be read: {error}") from error
    rank_table.parse(text)
    return text
