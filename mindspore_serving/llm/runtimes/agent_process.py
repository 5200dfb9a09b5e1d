"""The process of agent 0, which starts the other agents.

It loads the MindIR files of a model, and computes the steps of one engine after another until its
parent ends.
"""

import argparse
import json
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import numpy as np

from mindspore_serving import log
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel import messages
from mindspore_serving.llm.parallel.messages import (
    AgentReady,
    Compute,
    Computed,
    Offer,
    RankRefused,
    ToRank,
)
from mindspore_serving.llm.parallel.runner import open_ranks
from mindspore_serving.llm.runtimes import open_rank, open_runner
from mindspore_serving.llm.runtimes.agents import agents_address, is_same_user
from mindspore_serving.llm.step import Runner, RunnerLost
from mindspore_serving.process.channel import BlockingChannel, connect
from mindspore_serving.process.entry import enter
from mindspore_serving.process.vocabulary import Beat, Failed, Message, hello

BEAT_SECONDS = 1.0
SEND_SECONDS = 60.0  # timeout for an engine to read its logits
RUNTIME = "mindir"
Channel: TypeAlias = BlockingChannel[ToRank]


def main() -> int:
    """Run the process; return its exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, required=True)
    for name in ("--directory", "--options"):
        parser.add_argument(name, required=True)
    arguments = enter(parser, ignores_signals=True)
    with closing(Channel(connect(arguments.channel), ToRank)) as report:
        try:
            report.send(hello(messages))
            _run(Path(arguments.directory), arguments.size, json.loads(arguments.options), report)
        except Exception as error:
            if not isinstance(error, ServingError):
                log.error("agent 0 failed", exc_info=True)
            with suppress(OSError):
                report.send(Failed(str(error) or repr(error)))
    return 1


def _run(directory: Path, size: int, options: dict[str, object], report: Channel) -> None:
    """Serve engines until an error ends the process."""
    config = EngineConfig(**options, pipeline_parallel=size)  # type: ignore[arg-type]
    with _bound(directory) as listener:
        runner = _open(directory, config, lambda rank: report.send(AgentReady(rank)))
        try:
            listener.listen()
            _AgentServer(listener, runner).run()
        finally:
            runner.close()


@contextmanager
def _bound(directory: Path) -> Iterator[socket.socket]:
    """Hold the socket of the agents, to which engines cannot connect yet.

    Raises StartError if the model already has agents.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(agents_address(directory))
        except OSError as error:
            raise StartError(f"the model in {directory} already has agents: {error}") from error
        yield listener


def _open(directory: Path, config: EngineConfig, on_ready: Callable[[int], None]) -> Runner:
    if config.num_ranks > 1:
        return open_ranks(directory, RUNTIME, config, open_rank, on_ready)
    runner = open_runner(directory, RUNTIME, config)
    on_ready(0)
    return runner


class _AgentServer:
    """Server of one engine at a time; other engines are refused."""

    def __init__(self, listener: socket.socket, runner: Runner) -> None:
        self._listener = listener
        self._runner = runner
        self._engine: Channel | None = None

    def run(self) -> None:
        """Serve until a rank has ended.  Raises RunnerLost then."""
        while True:
            engine = self._engine
            waited = [self._listener.fileno(), *([engine.fileno()] if engine else [])]
            ready = select.select(waited, [], [])[0]
            if engine is not None and engine.fileno() in ready:
                self._answer_or_disconnect(engine)
            if self._listener.fileno() in ready:
                self._accept()

    def _accept(self) -> None:
        stream, _ = self._listener.accept()
        engine = Channel(stream, ToRank, SEND_SECONDS)
        if self._engine is not None or not is_same_user(stream):
            with closing(engine), suppress(OSError):
                engine.send(hello(messages))
                engine.send(Failed("another engine uses these agents"))
            return
        self._engine, runner = engine, self._runner
        offer = Offer(runner.block_size, runner.num_blocks, runner.vocab_size, runner.max_model_len)
        with suppress(OSError):
            engine.send(hello(messages))
            engine.send(offer)

    def _answer_or_disconnect(self, engine: Channel) -> None:
        try:
            for message in engine.receive(wait=True):
                engine.send(self._answer(engine, message))
            return
        except RunnerLost as error:
            with suppress(OSError):
                engine.send(Failed(str(error)))
            raise
        except EOFError:
            pass
        except OSError as error:
            log.warning("the engine disconnected: %s", error)
        engine.close()
        self._engine = None

    def _answer(self, engine: Channel, message: ToRank) -> Message:
        assert isinstance(message, Compute)
        with _beating(engine):
            try:
                logits = self._runner.run(message.step())
            except RunnerLost:
                raise
            except ServingError as error:
                return RankRefused(str(error))
        return Computed(np.ascontiguousarray(logits).tobytes())


@contextmanager
def _beating(engine: Channel) -> Iterator[None]:
    """Send heartbeats to the engine while a step is computed."""
    done = threading.Event()

    def beat() -> None:
        with suppress(OSError):
            while not done.wait(BEAT_SECONDS):
                engine.send(Beat())

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
