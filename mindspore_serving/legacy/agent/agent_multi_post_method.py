"""`startup_agents` of llm-serving: the ranks of a language model, before there is a server.

    startup_agents(None, None, None, 2, prefill, decode, argmax, topk, startup_queue)

Reads no configuration file: the caller has done so.
"""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from mindspore_serving import log
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.options import check_runtime, make_config
from mindspore_serving.llm.parallel import messages
from mindspore_serving.llm.parallel.messages import AgentReady, FromAgents
from mindspore_serving.llm.runtimes.mindir.cut import find_model
from mindspore_serving.process.channel import BlockingChannel
from mindspore_serving.process.child import Child, Program
from mindspore_serving.process.group import Group, ProcessMember
from mindspore_serving.process.supervisor import Supervisor
from mindspore_serving.process.vocabulary import Ready
from mindspore_serving.servable.check import check_int

MODULE = "mindspore_serving.llm.runtimes.agent_process"


class Queue(Protocol):
    """As of `queue` and `multiprocessing`."""

    def put(self, item: Any) -> None: ...


class _Agents(ProcessMember):
    """The process of agent 0, which starts the others and ends with them."""

    def __init__(self, arguments: Sequence[str], size: int, on_rank: Callable[[int], None]) -> None:
        """Start it.  `on_rank` is called with each that is ready.  Raises OSError."""
        child = Child(Program(MODULE, arguments, channel=socket.SOCK_STREAM))
        super().__init__("agent 0", child, BlockingChannel(child.stream, FromAgents), messages)
        self._num_missing = size
        self._on_rank = on_rank

    def on_ready(self, message: Ready) -> None:
        """As `ProcessMember.on_ready`, when all have said so."""
        assert isinstance(message, AgentReady)
        self._num_missing -= 1
        self.is_ready = not self._num_missing
        self._on_rank(message.rank)


def startup_agents(  # noqa: PLR0917  (the order is the original's)
    ctx_setting: object,
    inc_setting: object,
    post_model_setting: object,
    n_agents: int,
    prefill_model: Sequence[str],
    decode_model: Sequence[str],
    argmax_model: str | Sequence[str],
    topk_model: str | Sequence[str],
    startup_queue: Queue,
    *,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Start the ranks of a model, on this machine, and return.  They run until the script ends.

    A server uses them whose model has the runtime "agents".  Agents that end together with one that
    was lost are started again.

    Args:
        ctx_setting, inc_setting, post_model_setting: files of settings for Ascend's graph engine;
            without effect.
        n_agents: ranks, int >= 1.
        prefill_model, decode_model: a file of each rank, in their order, as
            `python -m mindspore_serving.llm.export_mindir SOURCE TARGET --ranks N` writes them.
        argmax_model, topk_model: its argmax.mindir and topk.mindir, which have to exist; the engine
            chooses tokens by itself.
        startup_queue: gets the number of each rank that is ready.  If they cannot start it gets one
            StartError, and no further number.
        options: of `EngineConfig`, for what agents decide: `kv_cache_memory`, `max_model_len`,
            `max_num_seqs`, `block_size`.

    Raises StartError or InvalidInputs: a wrong number of files, files that are missing or not of
    one model, an option that does not exist.
    """
    size = check_int("n_agents", n_agents, 1)
    directory = find_model(prefill_model, decode_model)
    if len(prefill_model) != size:
        raise InvalidInputs(f"n_agents is {size}, but there are {len(prefill_model)} prefill_model")
    for name, given in (("argmax_model", argmax_model), ("topk_model", topk_model)):
        _check_files(name, given)
    check_runtime(make_config({**(options or {}), "pipeline_parallel": size}), "mindir")
    keeping = _keep(directory, size, options or {}, startup_queue)
    # No daemon: the script stays up with its agents.
    threading.Thread(target=asyncio.run, args=[keeping], name="agents").start()


def _check_files(name: str, given: str | Sequence[str]) -> None:
    for path in (given,) if isinstance(given, str) else given:
        if not Path(path).is_file():
            raise StartError(f"{name} is {path!r}, expected a file")


async def _keep(directory: Path, size: int, options: Mapping[str, Any], queue: Queue) -> None:
    """Run the agents, and again after each end, if all were ready once."""
    words = [f"--directory={directory}", f"--size={size}", f"--options={json.dumps({**options})}"]

    def on_rank(rank: int) -> None:
        if supervisor.state == "starting":  # for the first time
            queue.put(rank)

    async def start() -> Group:
        group = Group()
        try:
            group.add(_Agents(words, size, on_rank))
            await group.ready()
        except (OSError, StartError) as error:  # no memory, no processes; what the agents say
            await group.close()
            raise StartError(f"the agents cannot start: {error}") from error
        return group

    supervisor = Supervisor("the group of agents", start, Group.wait, Group.kill)
    try:
        await supervisor.start()
    except StartError as error:
        log.error("%s", error)
        queue.put(error)
    await supervisor.join()
