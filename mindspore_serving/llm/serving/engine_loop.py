"""The loop of an engine: alone on its thread.  Commands go in from any thread, outputs come out.

Everything else (templates, tokenizing, grammars, JSON) happens on other threads, most of it while
the runner computes and has let go of the interpreter's lock.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from mindspore_serving import log
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.engine.encoder import Encoder
from mindspore_serving.llm.engine.stats import FirstStep
from mindspore_serving.llm.engines.base import LanguageEngine, Outputs, SteppedEngine
from mindspore_serving.llm.step import Vectors
from mindspore_serving.metrics.histogram import SIZES, Histogram

STATS_SECONDS = 0.25  # between two reports of numbers while there is work


class StepLane(Protocol):
    """Where it is written that a step runs, since when, and for which requests."""

    def begin(self) -> None:
        """A step begins, for any."""

    def narrow(self, request_ids: list[str]) -> None:
        """It computes these."""

    def end(self) -> None: ...


E = TypeVar("E", bound=LanguageEngine)
T = TypeVar("T")
Command = Callable[[Any], Outputs | None]


@dataclass(frozen=True, slots=True)
class LoopCallbacks:
    """What a loop calls, on its thread.  All must return at once.

    Args:
        on_outputs: with what was computed, by request, and with the error of a command that raised.
        on_stats: with the engine's numbers: when there is work again, from time to time, and when
            there is nothing left to do.
        on_end: when the loop ends; with the error if it broke.
        lane: where it is written that a step runs.
    """

    on_outputs: Callable[[Outputs], None]
    on_stats: Callable[[Any], None]
    on_end: Callable[[BaseException | None], None]
    lane: StepLane | None = None


class Loop(ABC, Generic[E]):
    """Owns `engine`: nobody else may touch it once `start` was called."""

    def __init__(self, engine: E, callbacks: LoopCallbacks) -> None:
        self._engine = engine
        self._callbacks = callbacks
        self._on_outputs = callbacks.on_outputs
        self._lane = callbacks.lane
        self.batch_sizes = Histogram(SIZES)  # sequences in each step
        self._reported = 0.0  # when `on_stats` was called last
        self._begun: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread.  Raises what the engine raises if it cannot begin."""
        self._thread.start()
        self._begun.result()

    @abstractmethod
    def post(self, request_id: str, command: Command) -> None:
        """Have `command` called with the engine before its next step.  What it returns are
        outputs; a ServingError that it raises is the output of `request_id`.
        """

    def ask(self, command: Callable[[Any], T]) -> Future[T]:
        """Have `command` called with the engine before its next step; what it returns or raises."""
        answer: Future[T] = Future()

        def run(engine: Any) -> None:
            try:
                answer.set_result(command(engine))
            except Exception as error:  # raised where it is waited for
                answer.set_exception(error)

        self.post("", run)
        return answer

    def close(self) -> None:
        """End the thread after the step it is in, and the engine with it; waits for both."""
        self._request_end()
        self._thread.join()

    @abstractmethod
    def _request_end(self) -> None:
        """Have `_loop` return; called on any thread."""

    @abstractmethod
    def _loop(self) -> None:
        """Set the result of `_begun`, and compute until the end is requested."""

    def _run(self) -> None:
        problem: BaseException | None = None
        try:
            self._loop()
        except BaseException as error:
            problem = error
            if self._begun.done():
                log.error("the engine has failed: %s", error, exc_info=True)
            else:
                self._begun.set_exception(error)
        try:
            self._engine.close()
        finally:
            self._callbacks.on_end(problem)

    def _execute(self, request_id: str, command: Command) -> None:
        try:
            outputs = command(self._engine)
        except ServingError as error:
            outputs = [(request_id, error)]
        if outputs:
            self._on_outputs(outputs)

    def _report(self, *, is_change: bool) -> None:
        """Give the engine's numbers: at once if work has begun or ended, else from time to time."""
        now = time.monotonic()
        if is_change or now - self._reported >= STATS_SECONDS:
            self._reported = now
            self._callbacks.on_stats(self._engine.stats())


class EngineLoop(Loop[SteppedEngine]):
    """The loop of an engine that is driven step by step."""

    def __init__(self, engine: SteppedEngine, callbacks: LoopCallbacks) -> None:
        super().__init__(engine, callbacks)
        self._commands: SimpleQueue[tuple[str, Command] | None] = SimpleQueue()
        self._is_closing = False
        engine.on_compute = self._on_compute

    def post(self, request_id: str, command: Command) -> None:
        self._commands.put((request_id, command))

    def _request_end(self) -> None:
        self._commands.put(None)

    def _loop(self) -> None:
        self._begun.set_result(None)
        while not self._is_closing:
            was_idle = not self._engine.has_work
            self._drain_commands(wait=was_idle)
            if self._is_closing:
                return
            began = time.monotonic()
            if self._lane is not None:
                self._lane.begin()
            outputs = self._engine.step()
            if self._lane is not None:
                self._lane.end()
            if self._engine.started:
                first = [(request_id, FirstStep(began)) for request_id in self._engine.started]
                outputs = [*first, *outputs]
            if outputs:
                self._on_outputs(outputs)
            self._report(is_change=was_idle or not self._engine.has_work)

    def _on_compute(self, request_ids: list[str]) -> None:
        self.batch_sizes.observe(len(request_ids))
        if self._lane is not None:
            self._lane.narrow(request_ids)

    def _drain_commands(self, *, wait: bool) -> None:
        """Execute the commands that have come; with `wait`, wait for the first."""
        try:
            entry = self._wait() if wait else self._commands.get_nowait()
            while True:
                if entry is None:
                    self._is_closing = True
                    return
                self._execute(*entry)
                entry = self._commands.get_nowait()
        except Empty:
            return

    def _wait(self) -> tuple[str, Command] | None:
        """The next command; until there is one, the engine does what can wait."""
        did_something = False
        while (seconds := self._engine.rest()) is not None:
            did_something = True
            with suppress(Empty):
                return self._commands.get(timeout=seconds)
        if did_something:
            self._callbacks.on_stats(self._engine.stats())
        return self._commands.get()


class LoopRunner:
    """An `EncoderRunner` for other threads: a pass is a command of the loop, for which the caller
    waits.
    """

    def __init__(self, encoder: Encoder, loop: Loop[Any]) -> None:
        runner = encoder.runner
        self.vocab_size = runner.vocab_size
        self.hidden_size = runner.hidden_size
        self.max_model_len = runner.max_model_len
        self.num_types = runner.num_types
        self._loop = loop

    def run(
        self, prompts: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> Vectors:
        def compute(engine: Any) -> Vectors:
            states: Vectors = engine.encoder.runner.run(prompts, types).copy()
            return states

        return self._loop.ask(compute).result()

    def close(self) -> None:
        """The loop closes the encoder."""
