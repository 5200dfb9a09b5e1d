"""`startup_agents` of llm-serving: the ranks of a language model, before there is a server.

    startup_agents(None, None, None, 2, prefill, decode, argmax, topk, startup_queue)

Reads no configuration file: the caller has done so.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mindspore_serving import log
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.options import check_runtime, make_config
from mindspore_serving.llm.parallel import messages
from mindspore_serving.llm.parallel.messages import AgentReady, FromAgents
from mindspore_serving.llm.runtimes.mindir.cut import find_model
from mindspore_serving.process.channel import BlockingChannel
from mindspore_serving.process.child import Child, Program, exit_text
from mindspore_serving.process.vocabulary import Failed, Hello, why_other
from mindspore_serving.servable.check import check_int

MODULE = "mindspore_serving.llm.runtimes.agent_process"
LONGEST_PAUSE = 30.0  # seconds between two starts of agents that end


class Queue(Protocol):
    """As of `queue` and `multiprocessing`."""

    def put(self, item: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class _Agents:
    """`size` agents of the model in `directory`, with `options` of its engine."""

    directory: Path
    size: int
    options: Mapping[str, Any]

    def run(self, on_ready: Callable[[int], None]) -> str:
        """Start them and wait for their end, which is returned; `on_ready` is called with each that
        is ready."""
        try:
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    child = Child(self._program(theirs.fileno()))
                try:
                    problem = _follow(ours, on_ready)
                    status = child.join()
                finally:
                    child.close()
        except OSError as error:  # no memory, no processes
            return str(error)
        return problem or exit_text(status)

    def _program(self, report: int) -> Program:
        arguments = {
            "--directory": self.directory, "--size": self.size,
            "--options": json.dumps(dict(self.options)), "--report": report,
        }  # fmt: skip
        return Program(MODULE, [str(word) for pair in arguments.items() for word in pair], [report])


def _follow(stream: socket.socket, on_ready: Callable[[int], None]) -> str:
    """Read what agent 0 reports until it ends; what it says of its end."""
    channel = BlockingChannel[FromAgents](stream, FromAgents)
    with suppress(EOFError):
        while True:
            message = channel.receive_one()
            if isinstance(message, Hello) and (why := why_other(message, messages, "agents")):
                return why
            if isinstance(message, AgentReady):
                on_ready(message.rank)
            if isinstance(message, Failed):
                return message.text
    return ""


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
