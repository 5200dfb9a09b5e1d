"""An engine of sound in a worker: requests from any thread, events to sinks, one thread computes.

Does for models of speech and for voices what `serving.async_engine` does for language models.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar, NoReturn, Protocol

from mindspore_serving import log
from mindspore_serving.core.llm_messages import Event, LLMRequest
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.sampling_params import FinishReason
from mindspore_serving.core.upstream_report import UpstreamReport
from mindspore_serving.errors import InvalidField, InvalidInputs, Overloaded, ServingError
from mindspore_serving.isolation.pool import JobFailure, Pool, PoolJob
from mindspore_serving.llm.engine.stats import EngineStats
from mindspore_serving.llm.serving.no_adapters import NoAdapters
from mindspore_serving.llm.serving.recording import GenerationRecorder, Timeline
from mindspore_serving.llm.serving.sinks import Outcome, Sink, deliver


class Cancellable(Protocol):
    """State of a request on the thread that computes."""

    is_cancelled: bool


@dataclass(slots=True)
class SoundRequest:
    """Request whose answer is not complete; `job` prepares it, `request` is its state then."""

    body: Any
    sink: Sink
    job: PoolJob | None = None
    request: Cancellable | None = None


class SoundEngine(ABC):
    """Engine with the interface of `AsyncEngine`, for requests of one kind.

    A subclass sets `card` and `_pool`, whose jobs prepare requests, and calls `_start`; its `_turn`
    then runs on a thread whenever `_wait` returns True.

    Args:
        wake: called from any thread when `collect` has events to deliver.
    """

    unready = decision = ""
    upstreams: tuple[UpstreamReport, ...] = ()
    kind: ClassVar[type[Any]]  # of requests
    does: ClassVar[str]  # verb and object, in errors
    card: ModelCard
    _pool: Pool

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.adapters = NoAdapters(f"a model that {self.does} takes no adapters")
        self._recorder = GenerationRecorder()
        self._ids = count(1)
        self._open: dict[str, SoundRequest] = {}
        self._outbox: deque[Outcome] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sound", daemon=True)

    @property
    def num_open(self) -> int:
        """Number of requests whose answer is not complete."""
        return len(self._open)

    def accept(
        self,
        request: LLMRequest,
        sink: Sink,
        item_id: int = 0,
        log_id: str = "",
        timeline: Timeline | None = None,
    ) -> str:
        """Start a request as `AsyncEngine.accept` does."""
        request_id = str(next(self._ids))
        entry = self._open[request_id] = SoundRequest(request, sink)
        try:
            if not isinstance(request, self.kind):
                verb = type(request).__name__.lower()
                raise InvalidField("model", text=f"this model {self.does} and cannot {verb}")
            entry.job = self._submit(request_id, request)
        except ServingError as error:
            self._put(request_id, error, True)
        return request_id

    def cancel(self, request_id: str) -> None:
        """Cancel a request; may be called by any thread."""
        entry = self._open.pop(request_id, None)
        if entry is None:
            return
        self._recorder.answers[FinishReason.ABORT.value] += 1
        if entry.job is not None:
            self._pool.cancel(entry.job)
        with self._changed:
            if entry.request is not None:
                entry.request.is_cancelled = True
            self._changed.notify()

    def counts(self) -> tuple[dict[str, int], dict[str, tuple[float, list[int]]]]:
        """Return the counters as `AsyncEngine.counts` does."""
        return dict(self._recorder.answers), self._recorder.counts()

    def share_memory(self, count: int) -> None:
        """Do nothing: the memory has a fixed size."""
        return

    def encoder_runner(self) -> NoReturn:
        """Raise InvalidInputs: there is no encoder of texts."""
        raise InvalidInputs(f"this model {self.does}: it has no encoder of texts")

    def collect(self) -> None:
        """Deliver events as `AsyncEngine.collect` does."""
        while self._outbox:
            deliver([self._outbox.popleft()], self._open)
        if self._problem is not None:
            raise RuntimeError(f"the thread of sound failed: {self._problem!r}")

    def close(self) -> None:
        """End the threads and free the model."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._pool.close()
        self._thread.join()
        self._free()

    @property
    @abstractmethod
    def stats(self) -> EngineStats:
        """Counters."""

    @abstractmethod
    def _free(self) -> None:
        """Free the model, after the last turn."""

    @abstractmethod
    def _submit(self, request_id: str, request: Any) -> PoolJob:
        """Prepare a request.  Raises InvalidField or Overloaded for one that is not started."""

    @abstractmethod
    def _wait(self) -> bool:
        """Wait for work; return whether there is some, False at the end."""

    @abstractmethod
    def _turn(self) -> None:
        """Compute a step."""

    def _start(self) -> None:
        self._thread.start()

    def _put(self, request_id: str, outcome: list[Event] | ServingError, is_last: bool) -> None:
        self._outbox.append((request_id, outcome, is_last))
        self._wake()

    def _run(self) -> None:
        try:
            while self._wait():
                self._turn()
        except BaseException as error:
            self._problem = error
            log.error("the thread of sound failed", exc_info=True)
            self._wake()


def to_error(failure: JobFailure, work: str) -> ServingError:
    """Return the error of a request whose preparation, `work`, failed."""
    text = f"{work} {failure.value}"
    if failure is JobFailure.CROWDED:
        return Overloaded(text)
    return ServingError(text) if failure is JobFailure.LOST else InvalidInputs(text)
