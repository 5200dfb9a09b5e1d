"""Prompts of a worker that decodes, which workers that compute prompts compute for it.

begin -> plan (engine's thread): the blocks that are missing, and whether this is worth it
      -> start (thread that collects): memory for the blocks, and a call of another worker
      -> on_reply: blocks have been written -> the engine copies them into its cache
      -> the last block, an error, or none for too long -> the request is added to the engine
"""

import threading
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mindspore_serving import log
from mindspore_serving.core.llm_messages import Event, Generate
from mindspore_serving.core.prefill_messages import BlocksWritten, Prefill
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.engine.handoff import Missing, MovingBlocks, reusable_blocks
from mindspore_serving.llm.engine.handoff_choice import is_worth_handoff, patience
from mindspore_serving.llm.serving.engine_loop import Command, Loop
from mindspore_serving.llm.serving.generation import GenerationEvents
from mindspore_serving.llm.storage.block_links import BlockLinks
from mindspore_serving.llm.storage.block_listener import BlocksReceived
from mindspore_serving.llm.storage.block_memory import BlockMemory
from mindspore_serving.stores.circuit import Circuit

FORGET_SECONDS = 60.0  # after which the speed of a link that is not used is measured again
MAX_IMAGE_BYTES = 64 << 20  # of the vectors of a prompt, which go with its request
CACHE_SHARE = 4  # the memory of prompts under way has at most 1/4 of the size of the cache


class PrefillCaller(Protocol):
    """Connection to workers that compute prompts, on the thread that collects."""

    def start(self, request: Prefill, item_id: int, log_id: str) -> int:
        """Call a worker for the request of an item; return the id of the call."""
        ...

    def drop(self, call_id: int) -> None:
        """End a call, whose further replies are not needed."""
        ...


@dataclass(frozen=True, slots=True)
class HandoffPlanned:
    """Output of a plan: another worker is to compute a prompt."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """Output of a timer: it is time to look whether blocks still arrive."""


@dataclass(slots=True, eq=False)
class _Handoff:
    request_id: str
    request: Generate
    answer: GenerationEvents
    command: Command  # adds the request to the engine
    digests: list[bytes]  # of all blocks
    missing: Missing
    patience: float
    adapter_key: str = ""
    moving: MovingBlocks | None = None  # once it is started
    call_id: int = 0
    began: float = field(default_factory=time.monotonic)
    last: float = field(default_factory=time.monotonic)  # time of the last block
    num_arrived: int = 0  # blocks, and then pieces of the state
    num_cached: int = 0  # blocks that the other worker did not have to compute
    seconds: float = 0.0  # that the other worker has had the request
    wire: float = 0.0  # seconds of a block on the link
    timer: threading.Timer | None = None

    @property
    def num_blocks(self) -> int:
        """Number of blocks that are to arrive."""
        return len(self.digests) - self.missing.num_before

    @property
    def count(self) -> int:
        """Number of blocks and pieces that are to arrive."""
        return self.num_blocks + self.missing.num_pieces

    @property
    def num_ahead(self) -> int:
        """Number of blocks that are still to be computed."""
        return max(0, self.num_blocks - self.num_arrived)

    @property
    def num_computed(self) -> int:
        """Number of blocks that can be reused and were in no cache; none without their state."""
        missing = self.missing
        if missing.num_pieces and self.num_arrived < self.count:
            return 0
        end = missing.num_before + min(self.num_arrived, self.num_blocks)
        return max(0, end - max(self.num_cached, missing.num_shared))


class Handoffs:
    """Handoffs of the engine of `loop`.

    Args:
        caller: connection to the other workers.
        opened: the ids of requests that are not cancelled.
        put: passes outputs to the thread that collects; any thread may call it.
        links: to workers on other machines; None if there are none.
    """

    def __init__(
        self,
        loop: Loop[Any],
        caller: PrefillCaller,
        opened: Container[str],
        put: Callable[[list[tuple[str, Any]]], None],
        links: BlockLinks | None = None,
    ) -> None:
        self._loop, self._caller, self._opened, self._put = loop, caller, opened, put
        self._links = links
        self._listener = None if links is None else links.listener
        self._lock = threading.Lock()
        self._open: dict[str, _Handoff] = {}
        self._calls: dict[int, _Handoff] = {}
        self._circuit = Circuit()
        self._measured = 0.0  # time at which blocks came over a link
        self._block_size, self._block_bytes = loop.submit(_sizes).result()

    def begin(
        self, request_id: str, request: Generate, answer: GenerationEvents, command: Command
    ) -> None:
        """Add a request to the engine by `command`, maybe once another has computed its prompt."""

        def plan(engine: Any) -> Any:
            handoff = self._plan(engine, request_id, request, answer, command)
            with self._lock:
                if request_id not in self._opened:
                    return []
                if handoff is not None:
                    self._open[request_id] = handoff
                    return [(request_id, HandoffPlanned())]
            engine.imports.num_local += 1
            return command(engine)

        self._loop.post(request_id, plan)

    def start(self, request_id: str, item_id: int, log_id: str) -> None:
        """Call another worker; if that is impossible, add the request to the engine."""
        with self._lock:
            handoff = self._open.get(request_id)
        if handoff is None:
            return  # it was cancelled
        try:
            memory = BlockMemory.create(handoff.count, self._block_bytes)
        except OSError as error:
            log.warning("there is no memory for the blocks of a prompt: %s", error)
            if self._forget(handoff):
                self._loop.post(request_id, handoff.command)
            return
        request, prompt = handoff.request, handoff.answer.prompt
        digests, missing, images = handoff.digests, handoff.missing, handoff.answer.images
        num_tokens = len(digests) * self._block_size
        message = Prefill(
            prompt=list(prompt[:num_tokens]),
            path=memory.path,
            name=memory.name,
            adapter=request.adapter,
            adapter_key=handoff.adapter_key,
            num_cached=missing.num_before,
            cache_salt=request.cache_salt,
            priority=request.priority,
            tenant=request.tenant,
            images=None if images is None else images.message(num_tokens),
            **self._where(),
        )
        with self._lock:
            if request_id not in self._open:
                memory.close()
                return
            handoff.moving = MovingBlocks(
                digests[missing.num_before :], memory, digests[-1], missing.num_pieces
            )
            if self._listener is not None:
                self._listener.expect(memory, self._report_to(request_id))
        handoff.call_id = self._caller.start(message, item_id, log_id)
        with self._lock:
            if request_id in self._open:
                self._calls[handoff.call_id] = handoff
                self._arm(handoff, handoff.patience)

    def on_reply(
        self, call_id: int, events: Sequence[Event] | ServingError, *, is_last: bool
    ) -> None:
        """Take a reply to a call."""
        with self._lock:
            handoff = self._calls.get(call_id)
        if handoff is None:
            return  # it has ended
        for event in events if not isinstance(events, ServingError) else ():
            if isinstance(event, BlocksWritten):
                self._arrived(handoff, event)
        if handoff.num_arrived >= handoff.count:
            self._end(handoff, "", is_answered=is_last)
        elif is_last:
            problem = str(events) if isinstance(events, ServingError) else "it has ended"
            self._end(handoff, problem, is_answered=True)

    def on_received(self, request_id: str, received: BlocksReceived) -> None:
        """Take blocks that have come from another machine, or the reason why no more will."""
        with self._lock:
            handoff = self._open.get(request_id)
        if handoff is None:
            return  # it has ended
        if received.wire:
            handoff.wire, self._measured = received.wire, time.monotonic()
        self._arrived(handoff, received.written, received.wire)
        if handoff.num_arrived >= handoff.count:
            self._end(handoff, "", is_answered=True)  # it will be, and nobody waits for that
        elif received.problem:
            self._end(handoff, received.problem, is_answered=False)

    def on_overdue(self, request_id: str) -> None:
        """Compute a prompt here if no block of it has arrived for too long."""
        with self._lock:
            handoff = self._open.get(request_id)
            if handoff is None:
                return
            left = handoff.last + handoff.patience - time.monotonic()
            if left > 0:
                self._arm(handoff, left)
                return
        self._end(handoff, f"no block in {handoff.patience:.1f} s", is_answered=False)

    def cancel(self, request_id: str) -> None:
        """Free what a request holds that has ended; the master ends its call.  Any thread."""
        with self._lock:
            handoff = self._open.get(request_id)
        if handoff is not None and self._forget(handoff) and (moving := handoff.moving):
            self._loop.post("", lambda engine: engine.imports.release(moving))

    def close(self) -> None:
        """Stop the timers, and free what requests hold."""
        with self._lock:
            request_ids = list(self._open)
        for request_id in request_ids:
            self.cancel(request_id)

    # --- on the engine's thread -----------------------------------------------------------------

    def _plan(
        self,
        engine: Any,
        request_id: str,
        request: Generate,
        answer: GenerationEvents,
        command: Command,
    ) -> _Handoff | None:
        """Return what another worker is to compute; None if this one is to."""
        prompt, images = answer.prompt, answer.images
        if len(prompt) <= engine.block_size or self._circuit.is_open:
            return None
        if images is not None and images.num_bytes > MAX_IMAGE_BYTES:
            return None
        name = request.adapter
        adapter_key = engine.adapters.key_of(name)
        if name and not adapter_key:
            return None  # it was unloaded
        adapter = engine.adapters.find(name)
        salt = request.cache_salt
        digests = reusable_blocks(engine, prompt, salt, adapter=adapter, images=images)
        imports, costs = engine.imports, engine.imports.costs
        missing = imports.missing(digests)
        with self._lock:
            waiting = list(self._open.values())
        num_ahead = sum(handoff.num_ahead for handoff in waiting)
        num_under_way = sum(handoff.count for handoff in waiting)
        limit = min(engine.num_blocks // CACHE_SHARE, engine.pool.num_free - imports.spare)
        count = len(digests) - missing.num_before + missing.num_pieces
        if not count or count + num_under_way > limit:
            return None
        if time.monotonic() - self._measured > FORGET_SECONDS:
            costs.wire = 0.0
        costs.compute = costs.compute or engine.cache.stored.cost.seconds
        streams = engine.num_running + len(waiting)
        tokens = engine.config.handoff_tokens
        if not is_worth_handoff(
            len(digests) - missing.num_shared,
            num_streams=streams,
            num_ahead=num_ahead,
            costs=costs,
            min_blocks=None if tokens is None else -(-tokens // engine.block_size),
            num_pieces=missing.num_pieces,
        ):
            return None
        wait = patience(count, num_ahead, costs)
        return _Handoff(request_id, request, answer, command, digests, missing, wait, adapter_key)

    # --- on the thread that collects --------------------------------------------------------------

    def _where(self) -> dict[str, Any]:
        """Return the fields of a `Prefill` for workers on other machines."""
        if self._links is None or self._listener is None:
            return {}
        settings = self._links.settings
        host = settings.listen_host if settings.machine else ""
        fields = {"machine": settings.machine, "host": host, "port": self._listener.port}
        return {**fields, "model": self._links.model}

    def _report_to(self, request_id: str) -> Callable[[BlocksReceived], None]:
        return lambda received: self._put([(request_id, received)])

    def _arrived(self, handoff: _Handoff, event: BlocksWritten, wire: float = 0.0) -> None:
        moving, count = handoff.moving, min(event.count, handoff.count)
        handoff.num_arrived = max(handoff.num_arrived, count)
        handoff.last, handoff.seconds = time.monotonic(), event.seconds
        handoff.num_cached = event.num_cached

        def arrived(engine: Any) -> None:
            engine.imports.costs.observe(compute=event.block_seconds, wire=wire)
            engine.imports.arrived(moving, count)

        self._loop.post("", arrived)

    def _end(self, handoff: _Handoff, problem: str, *, is_answered: bool) -> None:
        """Add the request to the engine; `problem` says why not all of its blocks have arrived."""
        if not self._forget(handoff):
            return
        if not is_answered:
            self._caller.drop(handoff.call_id)
        if not problem:
            self._circuit.succeed()
        else:
            if not self._circuit.is_failing:
                log.warning(
                    "a prompt is computed here, as a worker that computes prompts has not: %s",
                    problem,
                )
            self._circuit.fail()
        moving, seconds = handoff.moving, time.monotonic() - handoff.began
        busy = max(handoff.seconds, handoff.wire * handoff.count)
        handoff.answer.num_computed = handoff.num_computed * self._block_size

        def add(engine: Any) -> Any:
            imports = engine.imports
            imports.num_prompts += not problem
            imports.num_failed += bool(problem)
            imports.microseconds += int(seconds * 1e6)
            if not problem:
                imports.costs.observe(round_trip=max(1e-6, seconds - busy))
            return handoff.command(engine) if handoff.request_id in self._opened else []

        self._loop.post(
            handoff.request_id,
            lambda engine: engine.imports.end(moving, handoff.request_id, add),
        )

    def _forget(self, handoff: _Handoff) -> bool:
        """Remove a handoff; return whether it was there."""
        with self._lock:
            if handoff.timer is not None:
                handoff.timer.cancel()
            self._calls.pop(handoff.call_id, None)
            was_open = self._open.pop(handoff.request_id, None) is not None
        if was_open and self._listener is not None and handoff.moving is not None:
            self._listener.forget(handoff.moving.memory.name)
        return was_open

    def _arm(self, handoff: _Handoff, seconds: float) -> None:
        """Start the timer of a handoff.  Called with the lock."""
        late = [(handoff.request_id, Overdue())]
        handoff.timer = threading.Timer(seconds, self._put, [late])
        handoff.timer.daemon = True
        handoff.timer.start()


def _sizes(engine: Any) -> tuple[int, int]:
    return engine.block_size, engine.runner.block_bytes
