"""A model whose ranks run already, started by `startup_agents` of llm-serving's scripts.

Agents and engine meet at a socket that is named after the model's directory.  It is abstract: it
has no file, so nothing is left behind, and each side accepts the same user alone.
"""

import hashlib
import os
import socket
import struct
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import numpy as np

from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel import messages
from mindspore_serving.llm.parallel.messages import (
    Computed,
    FromAgents,
    Offer,
    RankRefused,
    compute,
)
from mindspore_serving.llm.runtimes.layout import LimitedRunner, RunnerLimits, lay_out
from mindspore_serving.llm.step import Logits, RunnerLost, Step
from mindspore_serving.process.channel import BlockingChannel
from mindspore_serving.process.vocabulary import Beat, Hello, version_mismatch

FIND_SECONDS = 60.0  # for agents that are started, or started again, to be ready
LOOK_SECONDS = 0.2  # between two attempts
PATIENCE = 10.0  # seconds without a message, while they compute, after which agents are lost
_CREDENTIALS = struct.Struct("3i")  # process, user, group
Agents: TypeAlias = BlockingChannel[FromAgents]


class AgentRunner(LimitedRunner):
    """A `Runner` whose steps are computed by `agents`."""

    def __init__(self, agents: Agents, limits: RunnerLimits) -> None:
        super().__init__(limits)
        self._agents = agents
        self._num_steps = 0
        self._lost: RunnerLost | None = None

    def run(self, step: Step) -> Logits:
        """As `Runner.run`."""
        if self._lost is not None:
            raise self._lost
        lay_out(step, self._limits)  # what is wrong is refused here
        self._num_steps += 1
        try:
            self._agents.send(compute(self._num_steps, step, embeds=False))
            return self._logits()
        except RunnerLost as error:
            self._lost = error
            raise
        except OSError as error:
            self._lost = RunnerLost(f"the agents do not answer: {error}")
            raise self._lost from error

    def close(self) -> None:
        """Leave the agents to the next engine."""
        self._agents.close()

    def _logits(self) -> Logits:
        while isinstance(message := _next(self._agents), Beat):
            pass
        if isinstance(message, RankRefused):
            raise ServingError(message.text)
        if not isinstance(message, Computed):
            raise RunnerLost(f"the agents: {getattr(message, 'text', message)}")
        return np.frombuffer(message.logits, np.float32).reshape(-1, self.vocab_size)


def open_runner(directory: str | Path, config: EngineConfig) -> AgentRunner:
    """The agents of the model in `directory`, which no other engine uses.

    Waits for them for FIND_SECONDS.  `kv_cache_memory` and `block_size` are as the agents have got
    them.  Raises StartError: there are none, another engine has them, an unknown option.
    """
    agents, offer = _find(Path(directory))
    longest = config.max_model_len or offer.max_model_len
    if longest > offer.max_model_len:
        agents.close()
        raise StartError(
            f"max_model_len is {longest}, but the agents hold {offer.max_model_len} tokens"
        )
    return AgentRunner(
        agents, RunnerLimits(offer.block_size, offer.num_blocks, offer.vocab_size, longest)
    )


def agents_address(directory: Path) -> str:
    """Where the agents of the model in `directory` listen: an abstract unix socket."""
    digest = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()
    return f"\0mindspore-serving-agents-{os.getuid()}-{digest[:32]}"


def is_ours(stream: socket.socket) -> bool:
    """Whether the other end is a process of this user."""
    found = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(found)[1] == os.getuid())


def _find(directory: Path) -> tuple[Agents, Offer]:
    """The connection to the agents, and their first message.  Raises as `open_runner`."""
    until = time.monotonic() + FIND_SECONDS
    while True:
        try:
            return _connect(directory)
        except (OSError, RunnerLost) as error:  # none yet, or they end
            if time.monotonic() >= until:
                raise StartError(
                    f"no agents run for {directory}: {error}; call startup_agents, which "
                    "examples/llm/start_agent.py does"
                ) from error
        time.sleep(LOOK_SECONDS)


def _connect(directory: Path) -> tuple[Agents, Offer]:
    with ExitStack() as failing:
        stream = failing.enter_context(socket.socket(socket.AF_UNIX))
        stream.settimeout(PATIENCE)
        stream.connect(agents_address(directory))
        if not is_ours(stream):
            raise StartError(f"the agents of {directory} belong to another user")
        agents = Agents(stream, FromAgents, PATIENCE)
        greeting, offer = _next(agents), _next(agents)
        if isinstance(greeting, Hello) and (why := version_mismatch(greeting, messages, "agents")):
            raise StartError(why)
        if not isinstance(offer, Offer):
            raise StartError(f"the agents of {directory}: {getattr(offer, 'text', offer)}")
        failing.pop_all()
        return agents, offer


def _next(agents: Agents) -> FromAgents:
    """Raises RunnerLost if the other end is closed, OSError after PATIENCE."""
    try:
        return agents.receive_next()
    except EOFError:
        raise RunnerLost("the agents have ended") from None
