"""A model of another server, as a worker has it: requests in from any thread, events out to sinks.

Does for an upstream what `serving.async_engine` does for a model that is loaded here.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, NoReturn, TypeAlias

from mindspore_serving import log
from mindspore_serving.core.llm_messages import Event, Generate, LLMRequest, to_refused
from mindspore_serving.core.model_card import UPSTREAM, ModelCard
from mindspore_serving.core.sampling_params import FinishReason
from mindspore_serving.errors import InvalidInputs, ServableUnavailable, ServingError
from mindspore_serving.llm.engine.stats import EngineStats
from mindspore_serving.llm.serving.recording import GenerationRecorder, Timeline
from mindspore_serving.llm.upstream.budget import KeptRoom
from mindspore_serving.llm.upstream.connection import Server
from mindspore_serving.llm.upstream.exchange import find_models
from mindspore_serving.llm.upstream.generation import Put, UpstreamGeneration, UpstreamTotals
from mindspore_serving.llm.upstream.options import UpstreamOptions, make_context, read_key
from mindspore_serving.llm.upstream.outbox import EventOutbox
from mindspore_serving.llm.upstream.pieces import MAX_COUNT

_LONGEST = 1 << 20  # tokens, where nobody says how many it takes
_MOST_LISTED = 8  # names in an error


_Given: TypeAlias = tuple[str, list[Event] | ServingError, bool]
"""For which request, what, and whether it is the last."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A request that is not answered in full."""

    request: LLMRequest
    sink: Put
    timeline: Timeline


class NoAdapters:
    """In place of `AdapterLoading`."""

    def set(self, wanted: Mapping[str, Any], done: Callable[[Mapping[str, Any]], None]) -> None:
        error = InvalidInputs("adapters are loaded by the upstream, not here")
        done(dict.fromkeys(wanted, error))


class UpstreamModel:
    """Has a thread, on which all requests are sent.  The surface is that of `AsyncEngine`.

    Args:
        options: where the server is, and how it is asked.
        max_model_len: tokens of a prompt and its answer, for clients; None: what the server says.
        wake: called from any thread when `collect` has something to deliver.

    Raises StartError for options that cannot be used.  A server that does not answer is no error:
    `unready` says so, until it does.
    """

    def __init__(
        self, options: UpstreamOptions, max_model_len: int | None, wake: Callable[[], None]
    ) -> None:
        self.unready = "the upstream was not asked yet"
        self.adapters = NoAdapters()
        self._options = options
        self._wake = wake
        self._model, self._length, self._max_model_len = options.model, 0, max_model_len
        self._server = _open_server(options)
        self._open: dict[str, _Open] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._recorder, self._totals, self._room = (
            GenerationRecorder(),
            UpstreamTotals(),
            KeptRoom(),
        )
        self._ids = count(1)
        self._problem: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._outbox: EventOutbox[_Given] = EventOutbox(self._loop, wake)
        self._is_closing = asyncio.Event()
        self._has_looked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upstream", daemon=True)
        self._thread.start()
        self._has_looked.wait()
        self.card = self._card(self._longest)

    @property
    def _longest(self) -> int:
        return self._max_model_len or self._length or _LONGEST

    @property
    def num_open(self) -> int:
        """Requests that are not answered in full."""
        return len(self._open)

    @property
    def stats(self) -> EngineStats:
        """What an engine counts, as far as it is known of another server."""
        return EngineStats(
            num_running=len(self._open),
            num_steps=self._totals.num_pieces,
            num_prompt_tokens=self._totals.num_prompt_tokens,
            num_generated_tokens=self._totals.num_generated_tokens,
        )

    def accept(
        self,
        request: LLMRequest,
        sink: Put,
        item_id: int = 0,
        log_id: str = "",
        timeline: Timeline | None = None,
    ) -> str:
        """As `AsyncEngine.accept`."""
        request_id = str(next(self._ids))
        self._open[request_id] = _Open(request, sink, timeline or Timeline())
        self._post(self._begin, request_id, log_id)
        return request_id

    def cancel(self, request_id: str) -> None:
        """Nobody waits any more: the connection for it is closed."""
        entry = self._open.pop(request_id, None)
        if entry is not None and isinstance(entry.request, Generate):
            self._recorder.answers[FinishReason.ABORT.value] += entry.request.params.n
        self._post(self._stop, request_id)

    def counts(self) -> tuple[dict[str, int], dict[str, tuple[float, list[int]]]]:
        """As `AsyncEngine.counts`."""
        return dict(self._recorder.answers), self._recorder.counts()

    def encoder_runner(self) -> NoReturn:
        """There is none."""
        raise InvalidInputs("an upstream has no encoder here")

    def collect(self) -> None:
        """As `AsyncEngine.collect`."""
        for request_id, found, is_last in self._outbox.collect():
            entry = self._open.get(request_id)
            if entry is None:
                continue  # it was cancelled
            if is_last:
                self._open.pop(request_id, None)
            refused = to_refused(found) if isinstance(found, ServingError) else None
            entry.sink(found if refused is None else [refused], is_last)
        if self._problem is not None:
            raise RuntimeError(f"the upstream's thread broke: {self._problem!r}")

    def close(self) -> None:
        """End the thread, and close what is open."""
        self._post(self._is_closing.set)
        self._thread.join()

    def _card(self, length: int) -> ModelCard:
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
            summary=f"{self._model or 'a model'} of {self._server.where}",
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
            log.error("the upstream's thread broke", exc_info=True)
        finally:
            self._has_looked.set()
            self._loop.close()
            self._wake()

    async def _serve(self) -> None:
        watching = asyncio.ensure_future(self._watch())
        closing = asyncio.ensure_future(self._is_closing.wait())
        await asyncio.wait([watching, closing], return_when=asyncio.FIRST_COMPLETED)
        tasks = [watching, closing, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not watching.cancelled():
            watching.result()

    async def _watch(self) -> None:
        """Look whether the server answers, until the end."""
        while not self._is_closing.is_set():
            self._set_unready(await self._look())
            self._has_looked.set()
            await asyncio.sleep(self._options.health_interval)

    async def _look(self) -> str:
        """Why no requests can be sent; "" if they can."""
        options, where = self._options, self._server.where
        try:
            found = await find_models(self._server, options.connect_timeout)
        except ServingError as error:
            return str(error)
        except Exception as error:  # whatever it sent, requests go on
            log.error("asking the upstream for its models", exc_info=True)
            return f"the upstream {where} cannot be asked for its models: {error!r}"
        lengths = dict(found)
        if not options.model and len(lengths) != 1:
            listed = ", ".join(list(lengths)[:_MOST_LISTED]) or "no models"
            return f"the upstream {where} lists {listed}: name one by the engine option 'model'"
        self._model = options.model or next(iter(lengths))
        self._length = lengths.get(self._model, 0)
        return ""

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

    async def _answer(self, request_id: str, entry: _Open) -> None:
        try:
            await self._ask(request_id, entry)
        except ServableUnavailable as error:
            self._set_unready(str(error))
            self._put(request_id, error, True)
        except ServingError as error:
            self._put(request_id, error, True)
        except Exception as error:
            log.error("asking the upstream", exc_info=True)
            problem = ServingError(f"asking the upstream failed: {error!r}")
            self._put(request_id, problem, True)

    async def _ask(self, request_id: str, entry: _Open) -> None:
        request = entry.request
        if not isinstance(request, Generate):
            raise InvalidInputs(f"an upstream is not asked to {type(request).__name__.lower()}")
        if not self._model:
            raise ServableUnavailable(self.unready)
        generation = UpstreamGeneration(
            request,
            entry.timeline,
            self._recorder,
            self._totals,
            max_tokens=self._longest,
            room=self._room,
        )

        async def give(events: list[Event], is_last: bool) -> None:
            self._put(request_id, events, is_last)
            await self._outbox.drained()

        await generation.run(self._server, self._model, self._options, give)

    def _put(self, request_id: str, found: list[Event] | ServingError, is_last: bool) -> None:
        if request_id not in self._open:
            self._stop(request_id)  # it was cancelled, also if a library lost that
        self._outbox.put((request_id, found, is_last))


def _open_server(options: UpstreamOptions) -> Server:
    """Raises StartError."""
    key = read_key(options.key_variable)
    return Server(options.url, make_context(options), key, options.connect_timeout)
