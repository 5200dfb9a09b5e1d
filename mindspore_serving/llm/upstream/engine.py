"""A model of another server, as a worker sees it: requests from any thread, events to sinks.

Does for an upstream what `serving.async_engine` does for a model that is loaded here.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, NoReturn, TypeAlias

from mindspore_serving import log
from mindspore_serving.core.default_sampling import operator_sampling
from mindspore_serving.core.llm_messages import Event, Generate, LLMRequest
from mindspore_serving.core.model_card import UPSTREAM, ModelCard
from mindspore_serving.core.sampling_params import FinishReason
from mindspore_serving.core.upstream_report import UpstreamReport
from mindspore_serving.errors import InvalidInputs, ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.stats import EngineStats
from mindspore_serving.llm.serving.no_adapters import NoAdapters
from mindspore_serving.llm.serving.recording import GenerationRecorder, Timeline
from mindspore_serving.llm.serving.sinks import Sink, deliver
from mindspore_serving.llm.upstream.budget import BufferQuota
from mindspore_serving.llm.upstream.fleet import Fleet
from mindspore_serving.llm.upstream.generation import UpstreamGeneration, UpstreamTotals
from mindspore_serving.llm.upstream.options import UpstreamOptions
from mindspore_serving.llm.upstream.outbox import EventOutbox
from mindspore_serving.llm.upstream.response_types import MAX_COUNT

_DEFAULT_MAX_MODEL_LEN = 1 << 20  # tokens, if neither the option nor the upstream limits them


_Delivery: TypeAlias = tuple[str, list[Event] | ServingError, bool]
"""The id of a request, its events or error, and whether they are the last."""


@dataclass(frozen=True, slots=True)
class _OpenRequest:
    """A request whose answer is not complete."""

    request: LLMRequest
    sink: Sink
    timeline: Timeline


class UpstreamModel:
    """Client of an upstream's model, with the interface of `AsyncEngine`.

    All requests are sent on one thread.

    Args:
        options: URL of the server and how to use it.
        config: default sampling, and the limit of tokens of a prompt and its answer; None: the one
            that the server lists.
        wake: called from any thread when `collect` has events to deliver.

    Raises:
        StartError: an option cannot be used. A server that does not reply is no error: `unready`
            says so until it does.
    """

    def __init__(
        self, options: UpstreamOptions, config: EngineConfig, wake: Callable[[], None]
    ) -> None:
        self.unready = "the upstream was not probed yet"
        self.decision = ""
        self.adapters = NoAdapters("adapters are loaded by the upstream, not here")
        self._options = options
        self._wake = wake
        self._config = config
        self._fleet = Fleet(options, self._changed)
        self._open: dict[str, _OpenRequest] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._recorder, self._totals, self._quota = (
            GenerationRecorder(),
            UpstreamTotals(),
            BufferQuota(),
        )
        self._ids = count(1)
        self._problem: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._outbox: EventOutbox[_Delivery] = EventOutbox(self._loop, wake)
        self._is_closing = asyncio.Event()
        self._was_probed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upstream", daemon=True)
        self._thread.start()
        self._was_probed.wait()
        self.card = self._card(self._context_length)

    @property
    def _context_length(self) -> int:
        return self._config.max_model_len or self._fleet.length or _DEFAULT_MAX_MODEL_LEN

    @property
    def upstreams(self) -> tuple[UpstreamReport, ...]:
        """State of each upstream."""
        return tuple(self._fleet.reports)

    @property
    def num_open(self) -> int:
        """Number of requests whose answer is not complete."""
        return len(self._open)

    def share_memory(self, count: int) -> None:
        """Do nothing: there is no cache here."""

    @property
    def stats(self) -> EngineStats:
        """Counters of an engine, as far as they are known of another server."""
        return EngineStats(
            num_running=len(self._open),
            num_steps=self._totals.num_chunks,
            num_prompt_tokens=self._totals.num_prompt_tokens,
            num_generated_tokens=self._totals.num_generated_tokens,
        )

    def accept(
        self,
        request: LLMRequest,
        sink: Sink,
        item_id: int = 0,
        log_id: str = "",
        timeline: Timeline | None = None,
    ) -> str:
        """Accept a request as `AsyncEngine.accept` does."""
        request_id = str(next(self._ids))
        self._open[request_id] = _OpenRequest(request, sink, timeline or Timeline())
        self._post(self._begin, request_id, log_id)
        return request_id

    def cancel(self, request_id: str) -> None:
        """Close the connection of a request whose client has left."""
        entry = self._open.pop(request_id, None)
        if entry is not None and isinstance(entry.request, Generate):
            self._recorder.answers[FinishReason.ABORT.value] += entry.request.params.n
        self._post(self._stop, request_id)

    def counts(self) -> tuple[dict[str, int], dict[str, tuple[float, list[int]]]]:
        """Return the counters as `AsyncEngine.counts` does."""
        return dict(self._recorder.answers), self._recorder.counts()

    def encoder_runner(self) -> NoReturn:
        """Raise InvalidInputs: an upstream has no encoder here."""
        raise InvalidInputs("an upstream has no encoder here")

    def collect(self) -> None:
        """Deliver events as `AsyncEngine.collect` does."""
        deliver(self._outbox.collect(), self._open)
        if self._problem is not None:
            raise RuntimeError(f"the upstream's thread failed: {self._problem!r}")

    def close(self) -> None:
        """End the thread and close all connections."""
        self._post(self._is_closing.set)
        self._thread.join()

    def _card(self, length: int) -> ModelCard:
        sampling = tuple(operator_sampling(self._config).items())
        return ModelCard(
            architecture="upstream",
            runtime=UPSTREAM,
            dtype="",
            quantization="",
            max_model_len=length,
            vocab_size=MAX_COUNT,
            can_generate=True,
            embedding_size=0,
            has_chat_template=True,
            tool_format="upstream",
            reasoning_format="upstream" if self._options.has_extensions else "",
            adapters=(),
            eos_ids=(),
            num_blocks=0,
            block_size=0,
            max_num_seqs=1,
            max_num_batched_tokens=1,
            max_num_waiting=None,
            created=int(time.time()),
            sampling=sampling,
            sampling_source="operator" if sampling else "",
            default_max_tokens=self._config.default_max_tokens,
            summary=self._fleet.summary,
        )

    def _post(self, call: Callable[..., None], *arguments: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)

    # --- on the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._problem = error
            log.error("the upstream's thread failed", exc_info=True)
        finally:
            self._was_probed.set()
            self._loop.close()
            self._wake()

    async def _serve(self) -> None:
        watching = asyncio.ensure_future(self._fleet.watch(self._was_probed.set))
        closing = asyncio.ensure_future(self._is_closing.wait())
        await asyncio.wait([watching, closing], return_when=asyncio.FIRST_COMPLETED)
        tasks = [watching, closing, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not watching.cancelled():
            watching.result()

    def _changed(self) -> None:
        self._set_unready(self._fleet.unready)
        self._wake()  # so that the states are reported

    def _set_unready(self, reason: str) -> None:
        if reason != self.unready:
            if reason:
                log.warning("not ready: %s", reason)
            self.unready = reason
            self._wake()

    def _begin(self, request_id: str, log_id: str) -> None:
        entry = self._open.get(request_id)
        if entry is None:
            return  # it was cancelled
        with log.of_request(log_id):
            task = self._loop.create_task(self._answer(request_id, entry))
        self._tasks[request_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(request_id, None))

    def _stop(self, request_id: str) -> None:
        if request_id in self._tasks:
            self._tasks[request_id].cancel()

    async def _answer(self, request_id: str, entry: _OpenRequest) -> None:
        try:
            await self._forward(request_id, entry)
        except ServingError as error:
            self._put(request_id, error, True)
        except Exception as error:
            log.error("the request to the upstream failed", exc_info=True)
            problem = ServingError(f"the request to the upstream failed: {error!r}")
            self._put(request_id, problem, True)

    async def _forward(self, request_id: str, entry: _OpenRequest) -> None:
        request = entry.request
        if not isinstance(request, Generate):
            raise InvalidInputs(f"an upstream cannot {type(request).__name__.lower()}")
        generation = UpstreamGeneration(
            request,
            entry.timeline,
            self._recorder,
            self._totals,
            max_tokens=self._context_length,
            quota=self._quota,
        )

        async def deliver(events: list[Event], is_last: bool) -> None:
            self._put(request_id, events, is_last)
            await self._outbox.drained()

        await generation.run(self._fleet, self._options, deliver)

    def _put(self, request_id: str, outcome: list[Event] | ServingError, is_last: bool) -> None:
        if request_id not in self._open:
            self._stop(request_id)  # cancelled; a library may have swallowed the cancellation
        self._outbox.put((request_id, outcome, is_last))
