"""Loop of an engine, alone on its thread: commands go in from any thread, outputs come out.

Everything else (templates, tokenizing, grammars, JSON) happens on other threads, most of it while
the runner computes and has released the interpreter's lock.
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
from mindspore_serving.llm.engine.pooler import PromptText
from mindspore_serving.llm.engine.stats import FirstStep
from mindspore_serving.llm.engines.base import LanguageEngine, Outputs, SteppedEngine
from mindspore_serving.llm.step import Vectors
from mindspore_serving.metrics.histogram import SIZES, Histogram

STATS_INTERVAL = 0.25  # seconds between two reports of counters while there is work


class StepLane(Protocol):
    """Record of the running step: since when it runs, and for which requests."""

    def begin(self) -> None:
        """Note that a step begins, for requests that are not known yet."""

    def narrow(self, request_ids: list[str]) -> None:
        """Note the requests that the step computes."""

    def end(self) -> None: ...


E = TypeVar("E", bound=LanguageEngine)
T = TypeVar("T")
Command = Callable[[Any], Outputs | None]


@dataclass(frozen=True, slots=True)
class LoopCallbacks:
    """Callbacks of a loop, called on its thread; they must return at once.

    Args:
        on_outputs: receives outputs by request, also the error of a command that raised.
        on_stats: receives the engine's counters: when work begins, at intervals, and when there is
            nothing left to do.
        on_end: called when the loop ends, with the error if it failed.
        lane: record of the running step.
    """

    on_outputs: Callable[[Outputs], None]
    on_stats: Callable[[Any], None]
    on_end: Callable[[BaseException | None], None]
    lane: StepLane | None = None


class Loop(ABC, Generic[E]):
    """A thread that owns `engine`: nobody else may touch it after `start`."""

    def __init__(self, engine: E, callbacks: LoopCallbacks) -> None:
        self._engine = engine
        self._callbacks = callbacks
        self._on_outputs = callbacks.on_outputs
        self._lane = callbacks.lane
        self.batch_sizes = Histogram(SIZES)  # sequences in each step
        self._reported = 0.0  # time of the last call of `on_stats`
        self._begun: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread.  Raises what the engine raises if it cannot begin."""
        self._thread.start()
        self._begun.result()

    @abstractmethod
    def post(self, request_id: str, command: Command) -> None:
        """Call `command` with the engine before its next step.

        What it returns are outputs; a ServingError that it raises is the output of `request_id`.
        """

    def submit(self, command: Callable[[Any], T]) -> Future[T]:
        """Call `command` with the engine before its next step; return a future of its result."""
        answer: Future[T] = Future()

        def run(engine: Any) -> None:
            try:
                answer.set_result(command(engine))
            except Exception as error:  # raised where it is waited for
                answer.set_exception(error)

        self.post("", run)
        return answer

    def close(self) -> None:
        """End the thread and the engine after the current step, and wait for both."""
        self._request_end()
        self._thread.join()

    @abstractmethod
    def _request_end(self) -> None:
        """Let `_loop` return; called on any thread."""

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
        """Report the engine's counters: at once if work has begun or ended, else at intervals."""
        now = time.monotonic()
        if is_change or now - self._reported >= STATS_INTERVAL:
            self._reported = now
            self._callbacks.on_stats(self._engine.stats())


class EngineLoop(Loop[SteppedEngine]):
    """Loop of an engine that is driven step by step."""

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

    def _on_compute(self, request_ids: list[str], num_sequences: int) -> None:
        self.batch_sizes.observe(num_sequences)
        if self._lane is not None:
            self._lane.narrow(request_ids)

    def _drain_commands(self, *, wait: bool) -> None:
        """Execute the queued commands; with `wait`, wait for the first."""
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
        """Return the next command; until it arrives, let the engine do what can wait."""
        did_something = False
        while (seconds := self._engine.do_idle_work()) is not None:
            did_something = True
            with suppress(Empty):
                return self._commands.get(timeout=seconds)
        if did_something:
            self._callbacks.on_stats(self._engine.stats())
        return self._commands.get()


class LoopRunner:
    """An `EncoderRunner` for other threads, which runs each pass as a command of the loop."""

    def __init__(self, encoder: Encoder, loop: Loop[Any]) -> None:
        runner = encoder.runner
        self.vocab_size = runner.vocab_size
        self.hidden_size = runner.hidden_size
        self.max_model_len = runner.max_model_len
        self.num_types = runner.num_types
        self.encoder = encoder
        self._loop = loop

    def compute(self, texts: Sequence[PromptText]) -> Vectors:
        """Compute one step as `Encoder.compute` does."""
        computed: Vectors = self._loop.submit(lambda engine: engine.encoder.compute(texts)).result()
        return computed

    def run(
        self, prompts: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> Vectors:
        def compute(engine: Any) -> Vectors:
            states: Vectors = engine.encoder.runner.run(prompts, types).copy()
            return states

        return self._loop.submit(compute).result()

    def close(self) -> None:
        """Do nothing: the loop closes the encoder."""
