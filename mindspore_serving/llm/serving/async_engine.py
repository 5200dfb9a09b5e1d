"""An engine on a thread of its own: requests in from any thread, events out to their sinks.

Requests are prepared (template, tokens, grammar) by a `Preparation` and computed by the step loop;
their events are made and delivered on the thread that calls `collect`.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Protocol

from mindspore_serving import log
from mindspore_serving.core.llm_messages import (
    Detokenize,
    Detokenized,
    Event,
    Generate,
    LLMRequest,
    Tokenize,
    to_refused,
)
from mindspore_serving.core.placement import LinkSettings
from mindspore_serving.core.prefill_messages import Prefill
from mindspore_serving.core.reading_messages import (
    DescribeTokenizer,
    Embed,
    Score,
    TokenizerDescribed,
)
from mindspore_serving.core.sampling_params import FinishReason
from mindspore_serving.core.speech_messages import Speak, Transcribe
from mindspore_serving.core.upstream_report import UpstreamReport
from mindspore_serving.errors import InvalidField, ServingError
from mindspore_serving.llm.engine.stats import EngineStats
from mindspore_serving.llm.engines.base import AnyEngine
from mindspore_serving.llm.loader import OpenedModel
from mindspore_serving.llm.processing.output_processor import OutputProcessor
from mindspore_serving.llm.processing.pinned_prompts import pin_prompts
from mindspore_serving.llm.processing.prepared import PreparedEvent
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.processing.tokenizer_config import tokenizer_config
from mindspore_serving.llm.serving.adapter_loading import AdapterLoading
from mindspore_serving.llm.serving.engine_loop import (
    EngineLoop,
    Loop,
    LoopCallbacks,
    LoopRunner,
)
from mindspore_serving.llm.serving.generation import GenerationEvents, ReadingEvents
from mindspore_serving.llm.serving.handoffs import HandoffPlanned, Handoffs, Overdue, PrefillCaller
from mindspore_serving.llm.serving.memory_monitor import MemoryMonitor
from mindspore_serving.llm.serving.prefilling import PrefillEvents
from mindspore_serving.llm.serving.preparation import Preparation, Prepared
from mindspore_serving.llm.serving.recording import GenerationRecorder, Timeline
from mindspore_serving.llm.serving.sinks import Sink
from mindspore_serving.llm.serving.task_loop import TaskLoop
from mindspore_serving.llm.step import EncoderRunner
from mindspore_serving.llm.storage.block_links import BlockLinks
from mindspore_serving.llm.storage.block_listener import BlocksReceived
from mindspore_serving.llm.storage.stores import model_key
from mindspore_serving.metrics.catalog import STEPS


class ItemLane(Protocol):
    """Record of the items that a step computes; None for all."""

    def begin(self, stage: int = 0, ids: Sequence[int] | None = None) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class UnansweredRequest:
    """A request that is not answered in full.  `answer` makes its events; None makes none."""

    answer: Any
    sink: Sink
    item_id: int
    log_id: str


class _StepLane:
    """Maps engine request ids to worker item ids for the status lane.

    Log lines of the loop get the request ids of the items that it computes.
    """

    def __init__(self, lane: ItemLane, opened: Mapping[str, UnansweredRequest]) -> None:
        self._lane = lane
        self._open = opened
        self.begin = lane.begin

    def narrow(self, request_ids: list[str]) -> None:
        entries = [self._open.get(part_id.partition("/")[0]) for part_id in request_ids]
        ids = {entry.item_id: entry.log_id for entry in entries if entry is not None}
        self._lane.end()  # readers must not see a mixture of old and new ids
        self._lane.begin(ids=list(ids))
        log.request_id.set(",".join(ids.values()))

    def end(self) -> None:
        self._lane.end()
        log.request_id.set("")


def _open_loop(engine: AnyEngine, callbacks: LoopCallbacks) -> Loop[Any]:
    return EngineLoop(engine, callbacks) if engine.is_stepped else TaskLoop(engine, callbacks)


class AsyncEngine:
    """Owner of the step loop of one model.

    Args:
        opened: the model; its engine belongs to the loop from now on.
        wake: called from any thread when `collect` has something to deliver.
        steps: record of the steps: since when they run, and for which items.
    """

    unready = ""  # it can always compute
    upstreams: tuple[UpstreamReport, ...] = ()

    def __init__(
        self, opened: OpenedModel, wake: Callable[[], None], steps: ItemLane | None = None
    ) -> None:
        self.card = opened.card()
        self.stats: EngineStats | None = None  # the newest ones
        self._opened = opened
        self._wake = wake
        self._outputs = OutputProcessor(opened.tokenizer)
        self._processor = Processor(
            opened.tokenizer,
            opened.chat_template,
            self.card,
            opened.find_adapter,
            is_trusted=False,
            images=opened.images,
            sounds=opened.sounds,
            tower=opened.tower,
            limits=opened.config,
        )
        pin_prompts(opened, self._processor)
        self._lock = threading.Lock()  # makes "not cancelled, so post" atomic
        self._open: dict[str, UnansweredRequest] = {}
        self._recorder = GenerationRecorder()
        self._ids = count(1)
        self._outbox: deque[tuple[str, Any]] = deque()
        self._problem: BaseException | None = None
        lane = None if steps is None else _StepLane(steps, self._open)
        callbacks = LoopCallbacks(self._put, self._put_stats, self._put_end, lane)
        self._loop = _open_loop(opened.engine, callbacks)
        self.adapters = AdapterLoading(opened, self._loop)
        self._encoder = opened.engine.encoder
        self._loop.start()
        memory = opened.engine.memory
        self._monitor = None
        if memory is not None and memory.can_release:
            self._monitor = MemoryMonitor(self._loop, memory)
            self._monitor.start()
        self._runner: Any = getattr(opened.engine, "runner", None)
        if self._runner is not None and hasattr(self._runner, "call_when_decided"):
            self._runner.call_when_decided(wake)
        self._preparation = Preparation(opened, self.card, self._processor, self._fail)
        self.handoffs: Handoffs | None = None  # of a worker that decodes
        self._links: BlockLinks | None = None

    def link(self, settings: LinkSettings) -> None:
        """Exchange blocks with workers on other machines, before any request."""
        opened = self._opened
        model = model_key(opened.directory, opened.runtime, opened.config, self._runner)
        self._links = BlockLinks(settings, model)

    def hand_off(self, caller: PrefillCaller) -> None:
        """Let other workers compute prompts, which `caller` calls.  Raises StartError."""
        self.handoffs = Handoffs(self._loop, caller, self._open, self._put, self._links)

    @property
    def decision(self) -> str:
        """Text of a runtime of several that says which of them computes which steps; else ""."""
        return getattr(self._runner, "decision", "")

    @property
    def num_open(self) -> int:
        """Number of requests that are not answered in full."""
        return len(self._open)

    def accept(
        self,
        request: LLMRequest,
        sink: Sink,
        item_id: int = 0,
        log_id: str = "",
        timeline: Timeline | None = None,
    ) -> str:
        """Start a request of an item, called `log_id` in logs; may be called by any thread.

        `collect` calls `sink` and writes to `timeline`.  Returns the request's id, to `cancel` it.
        """
        request_id = str(next(self._ids))
        answer: Any = None
        if isinstance(request, Generate):
            answer = GenerationEvents(request_id, request, self._outputs, self._recorder, timeline)
        elif isinstance(request, Embed | Score):
            answer = ReadingEvents(request_id, request, self.card)
        elif isinstance(request, Prefill):
            answer = PrefillEvents(request_id, request, self._loop, self._links)
        self._open[request_id] = UnansweredRequest(answer, sink, item_id, log_id)
        with log.of_request(log_id):
            self._preparation.start(
                request_id, request, partial(self._prepare, request_id, request, answer)
            )
        return request_id

    def cancel(self, request_id: str) -> None:
        """Cancel a request; may be called by any thread.

        The next step frees its blocks.  Its sink is not called again, but for a call under way.
        """
        answer = self._drop(request_id)
        if isinstance(answer, GenerationEvents):
            with self._lock:
                self._recorder.answers[FinishReason.ABORT.value] += answer.num_open

    def counts(self) -> tuple[dict[str, int], dict[str, tuple[float, list[int]]]]:
        """Return the answers by finish reason, and histograms by the names of their metrics."""
        sizes = self._loop.batch_sizes
        steps = {STEPS.name: (sizes.total, sizes.counts[:])}
        return dict(self._recorder.answers), {**self._recorder.counts(), **steps}

    def share_memory(self, count: int) -> None:
        """Let the cache take its part of a default that `count` models of this machine share."""
        if self._monitor is not None:
            self._monitor.num_sharing = count

    def encoder_runner(self) -> EncoderRunner:
        """Return the encoder for another thread: its passes are computed between two steps."""
        assert self._encoder is not None
        return LoopRunner(self._encoder, self._loop)

    def collect(self) -> None:
        """Deliver new events to the sinks; always called by the same thread.

        Raises RuntimeError if the step loop broke.
        """
        outbox = self._outbox
        collected: dict[str, list[tuple[str, Any]]] = {}
        while outbox:
            part_id, output = outbox.popleft()
            request_id = part_id.partition("/")[0]
            if isinstance(output, HandoffPlanned | Overdue | BlocksReceived):
                self._hand_off(request_id, output)
            elif request_id in self._open:
                collected.setdefault(request_id, []).append((part_id, output))
        for request_id, outputs in collected.items():
            self._deliver(request_id, outputs)
        if self._problem is not None:
            raise RuntimeError(f"the step loop failed: {self._problem!r}") from self._problem

    def close(self) -> None:
        """End the threads and free the model."""
        self._preparation.close()
        if self._monitor is not None:
            self._monitor.close()
        if self.handoffs is not None:
            self.handoffs.close()
        self._loop.close()
        if self._links is not None:
            self._links.close()
        self.adapters.close()

    # --- on the threads of the preparation ----------------------------------------------------

    def _prepare(self, request_id: str, request: LLMRequest, answer: Any, read: Prepared) -> None:
        if isinstance(read, PreparedEvent):
            self._put([(request_id, read.event)])
        elif isinstance(request, Tokenize):
            self._put([(request_id, self._processor.tokenize(request, self._outputs))])
        elif isinstance(request, Transcribe | Speak):
            raise InvalidField("model", text="this model reads and writes texts, and no speech")
        elif isinstance(request, DescribeTokenizer):
            self._put([(request_id, TokenizerDescribed(tokenizer_config(self._opened)))])
        elif isinstance(request, Detokenize):
            self._put([(request_id, Detokenized(self._processor.detokenize(request)))])
        else:
            commands = answer.prepare(request, self._processor, read)
            with self._lock:
                if request_id in self._open:
                    for part_id, command in commands:
                        if self.handoffs is not None and isinstance(request, Generate):
                            self.handoffs.begin(part_id, request, answer, command)
                        else:
                            self._loop.post(part_id, command)

    def _fail(self, request_id: str, error: ServingError) -> None:
        self._put([(request_id, error)])

    # --- on any thread ------------------------------------------------------------------------

    def _put(self, outputs: Any) -> None:
        self._outbox.extend(outputs)
        self._wake()

    def _put_stats(self, stats: EngineStats) -> None:
        self.stats = stats
        self._wake()

    def _drop(self, request_id: str) -> Any:
        """Forget the request, have the engine abort it, and return what made its events."""
        with self._lock:
            entry = self._open.pop(request_id, None)
        self._preparation.cancel(request_id)
        answer = None if entry is None else entry.answer
        if self.handoffs is not None:
            self.handoffs.cancel(request_id)
        if answer is not None:
            for part_id in answer.request_ids:
                self._loop.post(part_id, _aborting(part_id))
        return answer

    def _put_end(self, problem: BaseException | None) -> None:
        self._problem = problem
        self._wake()

    # --- on the thread that collects ----------------------------------------------------------

    def _hand_off(self, request_id: str, output: HandoffPlanned | Overdue | BlocksReceived) -> None:
        assert self.handoffs is not None
        if isinstance(output, Overdue):
            self.handoffs.on_overdue(request_id)
        elif isinstance(output, BlocksReceived):
            self.handoffs.on_received(request_id, output)
        elif (entry := self._open.get(request_id)) is not None:
            self.handoffs.start(request_id, entry.item_id, entry.log_id)

    def _deliver(self, request_id: str, outputs: list[tuple[str, Any]]) -> None:
        entry = self._open.get(request_id)
        if entry is None:
            return  # another thread has cancelled it
        answer, sink = entry.answer, entry.sink
        events: list[Event] = []
        for part_id, output in outputs:
            if isinstance(output, ServingError):
                self._end_early(request_id, output, sink)
                return
            if answer is None:
                events.append(output)
            else:
                events += answer.take(part_id, output)
        is_last = answer is None or answer.is_done
        if is_last and self._open.pop(request_id, None) is None:
            return
        if events or is_last:
            sink(events, is_last)

    def _end_early(self, request_id: str, error: ServingError, sink: Sink) -> None:
        self._drop(request_id)
        refused = to_refused(error)
        sink([refused] if refused else error, True)


def _aborting(request_id: str) -> Callable[[Any], None]:
    def abort(engine: Any) -> None:
        engine.abort(request_id)

    return abort
