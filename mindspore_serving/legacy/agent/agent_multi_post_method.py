"""`startup_agents` of llm-serving: the ranks of a language model, before there is a server.

    startup_agents(None, None, None, 2, prefill, decode, argmax, topk, startup_queue)

Reads no configuration file: the caller has done so.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mindspore_serving import log
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.loader import make_config
from mindspore_serving.llm.parallel.messages import Failed, Ready, decode_from_agents
from mindspore_serving.llm.runtimes.mindir.cut import find_model
from mindspore_serving.process.child import Child, Program, exit_text
from mindspore_serving.process.frames import receive
from mindspore_serving.servable.check import check_int

MODULE = "mindspore_serving.llm.runtimes.agent_process"
LONGEST_PAUSE = 30.0  # seconds between two starts of agents that end


class Queue(Protocol):
    """As of `queue` and `multiprocessing`."""

    def put(self, item: Any) -> None: ...


class _Agents(ProcessMember):
    """The process of agent 0, which starts the others and ends with them; `on_ready` is called with
    each that is ready."""

    def __init__(self, arguments: Sequence[str], size: int, on_ready: Callable[[int], None]) -> None:
        """Start it.  Raises OSError."""
        child, stream = start_with_stream(Program(MODULE, arguments), "--report")
        super().__init__("agent 0", child, stream)
        self._size, self._on_ready = size, on_ready
        self._frames = Frames(FromAgents)

    def receive(self) -> None:
        """As `ProcessMember.receive`."""
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
    make_config({**(options or {}), "pipeline_parallel": size})
    agents = _Agents(directory, size, options or {})
    # No daemon: the script stays up with its agents.
    threading.Thread(target=_keep, args=(agents, startup_queue), name="agents").start()


def _check_files(name: str, given: str | Sequence[str]) -> None:
    for path in (given,) if isinstance(given, str) else given:
        if not Path(path).is_file():
            raise StartError(f"{name} is {path!r}, expected a file")


def _keep(agents: _Agents, queue: Queue) -> None:
    """Run the agents, and again after each end, if they were ready once."""
    ready: list[int] = []

    def on_ready(rank: int) -> None:
        ready.append(rank)
        queue.put(rank)

    problem = agents.run(on_ready)
    if len(ready) < agents.size:
        log.error("the agents cannot start: %s", problem)
        queue.put(StartError(f"the agents cannot start: {problem}"))
        return
    pause = 1.0
    while True:
        log.error("the agents have ended (%s); they are started again", problem)
        time.sleep(pause)
        began = time.monotonic()
        problem = agents.run(lambda rank: None)
        is_short = time.monotonic() - began < LONGEST_PAUSE
        pause = min(2 * pause, LONGEST_PAUSE) if is_short else 1.0
