"""Engines over ranks that run already, started by `startup_agents` of llm-serving's scripts.

Agents and engine meet at a socket that is named after the model's directory.  It is abstract: it
has no file, so nothing is left behind, and each side accepts only the same user.
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

FIND_SECONDS = 60.0  # timeout for agents that start, or restart, to be ready
LOOK_SECONDS = 0.2  # interval of attempts
PATIENCE = 10.0  # seconds without a message during a step after which agents are lost
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
        """Run a step as `Runner.run` does."""
        if self._lost is not None:
            raise self._lost
        lay_out(step, self._limits)  # refuses a wrong step
        self._num_steps += 1
        try:
            self._agents.send(compute(self._num_steps, step))
            return self._logits()
        except RunnerLost as error:
            self._lost = error
            raise
        except OSError as error:
            self._lost = RunnerLost(f"the agents do not answer: {error}")
            raise self._lost from error

    def close(self) -> None:
        """Disconnect, and leave the agents to the next engine."""
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
    """Connect to the agents of the model in `directory`, which no other engine uses.

    Waits up to FIND_SECONDS for them.  `kv_cache_memory` and `block_size` are those of the agents.

    Raises StartError: no agents, agents that another engine uses, an unknown option.
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
    """Return the address at which the agents of the model listen: an abstract unix socket."""
    digest = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()
    return f"\0mindspore-serving-agents-{os.getuid()}-{digest[:32]}"


def is_same_user(stream: socket.socket) -> bool:
    """Return whether the other end is a process of this user."""
    credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.getuid())


def _find(directory: Path) -> tuple[Agents, Offer]:
    """Return the connection to the agents, and their first message.  Raises as `open_runner`."""
    deadline = time.monotonic() + FIND_SECONDS
    while True:
        try:
            return _connect(directory)
        except (OSError, RunnerLost) as error:  # no agents yet, or agents that are ending
            if time.monotonic() >= deadline:
                raise StartError(
                    f"no agents run for {directory}: {error}; call "
                    "startup_agents, as `mindspore-serving docs llm_serving` shows"
                ) from error
        time.sleep(LOOK_SECONDS)


def _connect(directory: Path) -> tuple[Agents, Offer]:
    with ExitStack() as failing:
        stream = failing.enter_context(socket.socket(socket.AF_UNIX))
        stream.settimeout(PATIENCE)
        stream.connect(agents_address(directory))
        if not is_same_user(stream):
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
    """Receive a message.  Raises RunnerLost if the other end is closed, OSError after PATIENCE."""
    try:
        return agents.receive_next()
    except EOFError:
        raise RunnerLost("the agents have ended") from None
