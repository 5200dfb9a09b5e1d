"""Batched dispatch: requests are queued per method and go to the worker whose window is emptiest.

Batches are dispatched once per turn of the event loop, so that requests that arrive together leave
together, in one message per worker.  A worker has at most as many parts as its `Window` allows.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from mindspore_serving.aio import Ticker
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.errors import Code, Overloaded
from mindspore_serving.ipc.messages import MethodReport
from mindspore_serving.master.admission import AdmissionControl
from mindspore_serving.master.answer_cache import cache_for
from mindspore_serving.master.levels import in_turns, make_queue
from mindspore_serving.master.link import Link
from mindspore_serving.master.method import ServedMethod
from mindspore_serving.master.pacing import Window
from mindspore_serving.master.patience import SERVED_SHARE
from mindspore_serving.master.request import (
    IDLE,
    QUEUED,
    SENT,
    Answer,
    DispatchStrategy,
    PendingPart,
    PendingRequest,
    WorkerLink,
)
from mindspore_serving.master.resources import ResourcePool

# A message that the worker runs and one that waits there; later parts stay in the queue.  A worker
# whose models run in other workers or in agents can have more: its instances only wait there.
MAX_MESSAGES, MAX_MESSAGES_WITHOUT_MODELS = 2, 8
MAX_MESSAGES_OF_CALLERS = 256  # of methods that call other servables, which have the limits
MAX_DROPPED = 1024  # parts of ended requests in the queue before they are removed


class BatchScheduler:
    """Scheduler that shares the workers among the batched methods.

    A worker can be reserved for one method, which then runs a quarantined part there and nothing
    else.
    """

    def __init__(self, deliver: Callable[[list[Answer]], None]) -> None:
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self.call_later = self._loop.call_later
        self._ticker = Ticker(self._loop, self.dispatch)
        self._waiting: dict[BatchedMethod, None] = {}  # methods with queued parts, in turn
        self._wake_at: dict[BatchedMethod, float] = {}  # when a delayed batch is due
        self._windows: dict[WorkerLink, Window] = {}  # shared by all methods of a worker
        self._reserved: dict[WorkerLink, BatchedMethod] = {}
        self.resources = ResourcePool()

    # --- workers ------------------------------------------------------------------------------

    def add_worker(self, link: WorkerLink, max_messages: int) -> None:
        """Add a worker that can have `max_messages` at a time.

        A lower limit set by another method of the worker stays.
        """
        self._windows.setdefault(link, Window(max_messages)).limit_messages(max_messages)

    def remove_worker(self, link: WorkerLink) -> None:
        """Remove a worker that has died."""
        self._windows.pop(link, None)
        self._reserved.pop(link, None)
        self.resources.release(link)

    def reserve(self, method: "BatchedMethod", links: Iterable[Link]) -> Link | None:
        """Reserve the worker with the fewest parts for `method`; None if none is free."""
        free = [link for link in links if link not in self._reserved]
        link = min(free, key=lambda link: self._windows[link].num_in_flight, default=None)
        if link is not None:
            self._reserved[link] = method
        return link

    def release(self, link: WorkerLink) -> None:
        """End the reservation of a worker."""
        self._reserved.pop(link, None)

    def is_empty(self, link: WorkerLink) -> bool:
        """Return whether the worker has answered all of its parts."""
        return not self._windows[link].num_in_flight

    def freest(self, links: Iterable[Link], batch_size: int) -> tuple[Link | None, int, int]:
        """Return the worker whose window is filled least, its room, and the number with room.

        It is not the worker with the most room: a fast worker in use has more room than an idle
        slow one.
        """
        freest, its_room, least, num_free = None, 0, 1.0, 0
        windows, reserved = self._windows, self._reserved
        for link in links:
            window = windows[link]
            room = window.room(batch_size)
            if room <= 0 or (reserved and link in reserved):
                continue
            num_free += 1
            count = window.num_in_flight
            filled = count / (count + room)
            if filled < least:
                freest, its_room, least = link, room, filled
        return freest, its_room, num_free

    def send(
        self,
        parts: Sequence[PendingPart],
        link: Link,
        now: float,
        strategy: DispatchStrategy | None = None,
    ) -> None:
        """Send `parts` to the worker of `link` in one message; `strategy` gets the answers."""
        link.send_work(parts, now, strategy or self)
        self._windows[link].sent(parts, now)

    # --- turns --------------------------------------------------------------------------------

    def schedule(self, method: "BatchedMethod") -> None:
        """Dispatch the queue of `method`, which is not empty, in the next turn of the loop."""
        self._waiting[method] = None
        if not self._ticker.is_armed:
            self._ticker.arm()

    def dispatch(self) -> None:
        """Let every method with queued parts send its complete batches to workers."""
        now = time.monotonic()  # uvloop's clock counts milliseconds
        for method in list(self._waiting):
            has_moved = method.dispatch(now)
            if not method.num_waiting:
                del self._waiting[method]
                self.resources.end_turn(method)
                continue
            if has_moved:  # move it to the end: methods of a worker take turns
                del self._waiting[method]
                self._waiting[method] = None
            due = method.due
            if due is not None and due > now and self._wake_at.get(method) != due:
                self._wake_at[method] = due
                self._loop.call_later(due - now, self._wake, method)

    def on_answers(self, link: WorkerLink, answers: list[Answer]) -> None:
        """Implement `DispatchStrategy.on_answers`."""
        self._windows[link].answered(answers, time.monotonic())
        if self.is_empty(link):
            self.resources.release(link)
        self._deliver(answers)
        if self._reserved and link in self._reserved and self.is_empty(link):
            self._reserved[link].on_empty()
        if self._waiting:
            self._ticker.arm()

    def _wake(self, method: "BatchedMethod") -> None:
        self._wake_at.pop(method, None)  # the loop's clock is coarse: if too early, wait again
        self._ticker.arm()


class BatchedMethod(ServedMethod):
    """Method whose requests are queued until a worker has room for a batch.

    Quarantined parts, which may have killed a worker, run one at a time in a reserved worker.
    """

    def __init__(
        self, scheduler: BatchScheduler, deployment: Deployment, version: int, report: MethodReport
    ) -> None:
        super().__init__(deployment, version, report)
        delay, preferred = deployment.max_batch_delay_ms, deployment.preferred_batch_size
        if delay and not preferred:
            preferred = report.batch_size  # a full batch need not wait
        is_cacheable = self.can_retry if report.cache is None else report.cache
        has_state = report.state_bytes is not None
        self.cache = cache_for(deployment, is_cacheable=is_cacheable and not has_state)
        self.splits_instances = preferred > 0  # the preferred size counts instances, not requests
        self.admission = AdmissionControl(SERVED_SHARE, self._ages)
        self._scheduler = scheduler
        self._resources = deployment.resources
        scheduler.resources.declare(deployment.resources, deployment.resource_counts)
        self._queue, self._levels = make_queue(
            deployment, preferred, self.label, scheduler.call_later, self._on_ended_removed
        )
        self._num_dropped = 0  # parts in the queue whose request has ended
        self._has_agents = deployment.gang is not None
        # Parts that must not run again if the worker dies do not wait in the worker.
        self._sends_single_batches = not self.can_retry and not self._has_agents
        self._quarantined: deque[PendingPart] = deque()
        self._reserved: Link | None = None  # for quarantined parts
        self._is_quarantine_running = False  # the reserved worker has a quarantined part

    @property
    def num_waiting(self) -> int:
        return len(self._queue) + len(self._quarantined)

    @property
    def num_ahead(self) -> int:
        """Number of queued parts whose requests have not ended."""
        return len(self._queue) - self._num_dropped

    @property
    def due(self) -> float | None:
        """Time at which the queued batch must leave even if it is not full; None without one."""
        return self._queue.due()

    def admit(self, timeout: float | None, now: float, tenant: str = "") -> None:
        if self.admission.queue.since:
            num_ahead = min(self.num_ahead, self._queue.num_ahead(tenant))
            self.admission.check(num_ahead, timeout, now)

    def count_done(self, request: PendingRequest, code: int, now: float) -> None:
        patience, until = self.admission.patience, request.first_output or now
        if code == Code.CANCELLED and not request.first_output:
            patience.left(now - request.started, now)
        elif patience.is_known:
            patience.stayed(until - request.started, now)
        if not self.admission.queue.since:
            return
        if code == Code.OK and request.parts[0].state is SENT:
            self.admission.ran(until - request.parts[0].sent_at)
        elif code == Code.CANCELLED:
            self._shed(now)

    def on_dropped(self, part: PendingPart) -> None:
        self._num_dropped += 1

    def _on_ended_removed(self, count: int) -> None:
        self._num_dropped -= count

    def _ages(self, now: float) -> list[float]:
        """Return the ages of queued requests in seconds, estimated from a sample."""
        sample = self._queue.sample()
        ages = [now - part.request.started for part in sample if not part.request.is_done]
        return ages * round(len(self._queue) / max(1, len(sample)))

    def _shed(self, now: float) -> None:
        """Refuse the oldest queued parts if the queue is longer than clients' patience."""
        count = self.admission.num_to_shed(self.num_ahead, now)
        if count:
            waiting = (part for part in self._queue if not part.request.is_done)
            for part in list(islice(waiting, count)):
                self._refuse_late(part, now)

    def _refuse_late(self, part: PendingPart, now: float) -> None:
        """Refuse a part whose answer would be too late."""
        waited = now - part.request.started
        text = f"{self.label}: the request waited for {waited:.1f} s, its answer would be too late"
        wait = self.admission.queue.wait(self.num_ahead, now)
        part.request.fail(Overloaded(text, retry_after=wait))

    def withhold(self, link: Link) -> None:
        super().withhold(link)
        self._release(link)

    def remove_worker(self, link: Link) -> None:
        super().remove_worker(link)
        self._release(link)

    def _release(self, link: Link | None) -> None:
        """End the reservation of the worker of `link`, if it is the reserved one."""
        if link is not None and link is self._reserved:
            self._scheduler.release(link)
            self._reserved, self._is_quarantine_running = None, False

    def add_worker(self, link: Link) -> None:
        runs_models = link.owns_models and not self._has_agents
        max_messages = MAX_MESSAGES if runs_models else MAX_MESSAGES_WITHOUT_MODELS
        if self.report.calls:
            max_messages = MAX_MESSAGES_OF_CALLERS
        self._scheduler.add_worker(link, 1 if self._sends_single_batches else max_messages)
        self.workers.append(link)
        self._scheduler.schedule(self)

    def put(self, parts: Sequence[PendingPart], now: float) -> None:
        """Queue `parts` until a worker has room.  Raises Overloaded if their level has none."""
        if self._levels is not None:
            self._levels.check(parts)
        elif parts[0].request.tenant:
            self._queue = in_turns(self._queue)
        for part in parts:
            part.state = QUEUED
            self._queue.add(part, now)
        if self._levels is not None:
            self._levels.watch(now)
        self._scheduler.schedule(self)

    def put_back(self, part: PendingPart) -> None:
        """Return `part` to the head of the queue, or of the quarantine."""
        if part.is_quarantined:
            self._quarantined.appendleft(part)
        else:
            part.state = QUEUED
            self._queue.put_back(part)
        self._scheduler.schedule(self)

    def take_waiting(self) -> list[PendingPart]:
        """Remove and return all queued parts."""
        parts = [*self._queue.clear(), *self._quarantined]
        self._quarantined.clear()
        self._num_dropped = 0
        for part in parts:
            part.state = IDLE
        return parts

    def dispatch(self, now: float) -> bool:
        """Send all parts that can leave now; return whether any left the queue."""
        if self._quarantined:
            self._dispatch_quarantined(now)
        if self._num_dropped > MAX_DROPPED and 2 * self._num_dropped > len(self._queue):
            self._queue.keep(lambda part: not part.request.is_done)
            self._num_dropped = 0
        has_moved = False
        while self._dispatch_once(now):
            has_moved = True
        if self.num_ahead:
            self.admission.queue.fill(now)
        return has_moved

    def on_empty(self) -> None:
        """Continue after the reserved worker has answered all of its parts."""
        if self._is_quarantine_running:
            self._release(self._reserved)
        self._scheduler.schedule(self)

    def _dispatch_quarantined(self, now: float) -> None:
        """Send the next quarantined part to a reserved worker that has nothing else.

        If none is reserved, reserve one; it gets the part once it is empty.
        """
        while self._quarantined and self._quarantined[0].request.is_done:
            self._quarantined.popleft()
        if self._is_quarantine_running:
            return
        if not self._quarantined:
            self._release(self._reserved)
            return
        if self._reserved is None:
            self._reserved = self._scheduler.reserve(self, self.workers)
        if self._reserved is not None and self._scheduler.is_empty(self._reserved):
            self._is_quarantine_running = True
            self._scheduler.send([self._quarantined.popleft()], self._reserved, now)

    def _dispatch_once(self, now: float) -> bool:
        """Send a share of the queue to the freest worker; return whether any part left it."""
        oldest = self._queue.peek()
        if oldest is None:
            return False
        size = self.report.batch_size
        needs = self._needs(oldest)
        links: Sequence[Link] = self.workers
        if needs and self._queue.is_complete(now):
            links = self._scheduler.resources.usable(self, needs, links)
        link, room, num_free = self._scheduler.freest(links, size)
        if link is None:
            return False
        batch = -(-size // max(1, len(oldest.chunks)))  # parts that fill a batch
        share = max(batch, -(-len(self._queue) // num_free))
        parts = self._queue.take(min(room, batch if self._sends_single_batches else share), now)
        if not parts:
            return False
        self._scheduler.resources.end_turn(self)
        parts = self._drop_late(parts, now)
        if parts:
            self._scheduler.send(parts, link, now)
            self._scheduler.resources.hold(link, needs)
            if len(self.workers) > 1:
                self._make_last(link)
        return True

    def _needs(self, part: PendingPart) -> Mapping[str, int]:
        """Return the resources that a worker needs for `part`.

        It needs none for a call of a worker, which may hold them, unless that runs no models.
        """
        is_nested = part.request.is_call and not self.report.name.startswith("@")
        return {} if is_nested else self._resources

    def _drop_late(self, taken: list[PendingPart], now: float) -> list[PendingPart]:
        """Refuse parts, just taken from the queue, that would be late; return the rest."""
        parts = [part for part in taken if not part.request.is_done]
        self._num_dropped -= len(taken) - len(parts)
        admission = self.admission
        if not admission.queue.since:
            return parts
        admission.queue.drain(len(parts), now, is_empty=not self.num_ahead)
        for part in parts:
            part.state = IDLE  # a refusal ends all parts of its request: they have left, too
        in_time = []
        for part in parts:
            if admission.is_late(part.request.started, part.request.deadline, now):
                self._refuse_late(part, now)
            else:
                in_time.append(part)
        return in_time
