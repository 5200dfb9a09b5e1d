"""`startup_agents` of llm-serving: starts the ranks of a language model before the server.

    startup_agents(None, None, None, 2, prefill, decode, argmax, topk, startup_queue)

It reads no configuration file; the caller does.
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
    """Queue of `queue` or `multiprocessing`."""

    def put(self, item: Any) -> None: ...


class _Agents(ProcessMember):
    """Process of agent 0, which starts the other agents and ends with them."""

    def __init__(self, arguments: Sequence[str], size: int, on_rank: Callable[[int], None]) -> None:
        """Start the process; `on_rank` is called with each rank that is ready.  Raises OSError."""
        child = Child(Program(MODULE, arguments, channel=socket.SOCK_STREAM))
        super().__init__("agent 0", child, BlockingChannel(child.stream, FromAgents), messages)
        self._num_missing = size
        self._on_rank = on_rank

    def on_ready(self, message: Ready) -> None:
        """Handle the message of a rank; the group is ready when all ranks are."""
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
    """Start the ranks of a model on this machine, and return.  They run until the script ends.

    A server uses them for a model with the runtime "agents".  If one agent ends, all end and are
    started again.

    Args:
        ctx_setting: file of settings for Ascend's graph engine; without effect.
        inc_setting: as `ctx_setting`.
        post_model_setting: as `ctx_setting`.
        n_agents: ranks, int >= 1.
        prefill_model: a file per rank, in order, written by
            `python -m mindspore_serving.llm.export_mindir SOURCE TARGET --ranks N`.
        decode_model: as `prefill_model`.
        argmax_model: argmax.mindir, which must exist and is not used: the engine samples itself.
        topk_model: topk.mindir, as `argmax_model`.
        startup_queue: receives the number of each rank that is ready, or one StartError if the
            ranks cannot start.
        options: fields of `EngineConfig` that agents need: `kv_cache_memory`, `max_model_len`,
            `max_num_seqs`, `block_size`.

    Raises StartError or InvalidInputs for a wrong number of files, files that are missing or of
    different models, and an option that does not exist.
    """
    size = check_int("n_agents", n_agents, 1)
    directory = find_model(prefill_model, decode_model)
    if len(prefill_model) != size:
        raise InvalidInputs(f"n_agents is {size}, but there are {len(prefill_model)} prefill_model")
    for name, files in (("argmax_model", argmax_model), ("topk_model", topk_model)):
        _check_files(name, files)
    check_runtime(make_config({**(options or {}), "pipeline_parallel": size}), "mindir")
    keeping = _keep(directory, size, options or {}, startup_queue)
    # No daemon thread: the script runs as long as its agents.
    threading.Thread(target=asyncio.run, args=[keeping], name="agents").start()


def _check_files(name: str, files: str | Sequence[str]) -> None:
    for path in (files,) if isinstance(files, str) else files:
        if not Path(path).is_file():
            raise StartError(f"{name} is {path!r}, expected a file")


async def _keep(directory: Path, size: int, options: Mapping[str, Any], queue: Queue) -> None:
    """Run the agents, and start them again after each end, if all were ready once."""
    words = [f"--directory={directory}", f"--size={size}", f"--options={json.dumps({**options})}"]

    def on_rank(rank: int) -> None:
        if supervisor.state == "starting":  # only at the first start
            queue.put(rank)

    async def start() -> Group:
        group = Group()
        try:
            group.add(_Agents(words, size, on_rank))
            await group.ready()
        except (OSError, StartError) as error:  # no memory, no processes, or an error of the agents
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
