"""The batched strategy: requests wait in a queue per method and leave for the freest worker.

Work is handed out once per turn of the event loop, so that requests that arrive together leave
together, in one message per worker.  A worker has at most what its `Window` allows.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from mindspore_serving.aio import Ticker
from mindspore_serving.batching.batcher import Batcher
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.errors import Code, Overloaded
from mindspore_serving.ipc.messages import MethodReport
from mindspore_serving.master.admission import AdmissionControl
from mindspore_serving.master.link import Link
from mindspore_serving.master.method import ServedMethod
from mindspore_serving.master.pacing import Window
from mindspore_serving.master.patience import STAYING
from mindspore_serving.master.request import (
    IDLE,
    QUEUED,
    SENT,
    Answer,
    PendingPart,
    PendingRequest,
    WorkerLink,
)

# One message that the worker runs and one that waits there; what comes meanwhile waits here.  A
# worker that has its models run by others, or by agents, may have more: its instances only wait.
MAX_MESSAGES, MAX_MESSAGES_WITHOUT_MODELS = 2, 8
MAX_DROPPED = 1024  # parts that nobody waits for, before they are taken out of the queue


class BatchScheduler:
    """Shares the workers among the batched methods: which may have how much, and whose turn it is.

    A worker can be reserved for one method, which then runs a suspect there and nothing beside it.
    """

    def __init__(self, deliver: Callable[[list[Answer]], None]) -> None:
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._ticker = Ticker(self._loop, self.hand_out)
        self._waiting: dict[BatchedMethod, None] = {}  # methods where something does, in order
        self._wake_at: dict[BatchedMethod, float] = {}  # when the loop looks at a delayed batch
        self._windows: dict[WorkerLink, Window] = {}  # one for all methods of a worker
        self._reserved: dict[WorkerLink, BatchedMethod] = {}

    # --- workers ------------------------------------------------------------------------------

    def add_worker(self, link: WorkerLink, max_messages: int) -> None:
        """Let the worker have so many messages at a time, or fewer if another method said so."""
        self._windows.setdefault(link, Window(max_messages)).limit_messages(max_messages)

    def forget(self, link: WorkerLink) -> None:
        """The worker of `link` has died."""
        self._windows.pop(link, None)
        self._reserved.pop(link, None)

    def reserve(self, method: "BatchedMethod", links: Iterable[Link]) -> Link | None:
        """Reserve for `method` the worker of `links` that has the least; None if none is free."""
        free = [link for link in links if link not in self._reserved]
        link = min(free, key=lambda link: self._windows[link].num_held, default=None)
        if link is not None:
            self._reserved[link] = method
        return link

    def release(self, link: WorkerLink) -> None:
        """The worker is no longer reserved."""
        self._reserved.pop(link, None)

    def is_empty(self, link: WorkerLink) -> bool:
        """Whether the worker has answered all that it was sent."""
        return not self._windows[link].num_held

    def freest(self, links: Iterable[Link], batch_size: int) -> tuple[Link | None, int, int]:
        """The worker that has filled the least of its window, its room, and how many have any.

        Not the one with the most room: a fast worker has more of it than an idle slow one.
        """
        freest, its_room, least, num_free = None, 0, 1.0, 0
        windows, reserved = self._windows, self._reserved
        for link in links:
            window = windows[link]
            room = window.room(batch_size)
            if room <= 0 or (reserved and link in reserved):
                continue
            num_free += 1
            held = window.num_held
            filled = held / (held + room)
            if filled < least:
                freest, its_room, least = link, room, filled
        return freest, its_room, num_free

    def send(self, parts: Sequence[PendingPart], link: Link, now: float) -> None:
        """Give `parts` to the worker of `link`, in one message."""
        link.send_work(parts, now, self)
        self._windows[link].sent(parts, now)

    # --- turns --------------------------------------------------------------------------------

    def schedule(self, method: "BatchedMethod") -> None:
        """Something waits in `method`."""
        self._waiting[method] = None
        if not self._ticker.is_armed:
            self._ticker.arm()

    def hand_out(self) -> None:
        """Let every method where something waits give workers what may leave now."""
        now = time.monotonic()  # uvloop's clock counts milliseconds
        for method in list(self._waiting):
            has_moved = method.hand_out(now)
            if not method.num_waiting:
                del self._waiting[method]
                continue
            if has_moved:  # it is the last next time: methods of a worker take turns
                del self._waiting[method]
                self._waiting[method] = None
            due = method.due
            if due is not None and due > now and self._wake_at.get(method) != due:
                self._wake_at[method] = due
                self._loop.call_later(due - now, self._wake, method)

    def on_answers(self, link: WorkerLink, answers: list[Answer]) -> None:
        """See `DispatchStrategy.on_answers`."""
        self._windows[link].answered(answers, time.monotonic())
        self._deliver(answers)
        if self._reserved and link in self._reserved and self.is_empty(link):
            self._reserved[link].on_empty()
        if self._waiting:
            self._ticker.arm()

    def _wake(self, method: "BatchedMethod") -> None:
        self._wake_at.pop(method, None)  # the loop's clock is coarse: if it is early, wait again
        self._ticker.arm()


class BatchedMethod(ServedMethod):
    """A method whose requests wait here until a worker has room for a batch.

    Suspects, of which a worker may have died, are run one at a time, by a worker that is reserved.
    """

    def __init__(
        self, scheduler: BatchScheduler, deployment: Deployment, version: int, report: MethodReport
    ) -> None:
        super().__init__(deployment, version, report)
        delay, preferred = deployment.max_batch_delay_ms, deployment.preferred_batch_size
        if delay and not preferred:
            preferred = report.batch_size  # a batch of it need not wait
        self.is_cut_singly = preferred > 0  # it counts instances, not requests
        self.admission = AdmissionControl(STAYING, self._ages)
        self._scheduler = scheduler
        self._queue: Batcher[PendingPart] = Batcher(delay, preferred)
        self._num_dropped = 0  # in the queue, that nobody waits for any more
        self._has_agents = deployment.gang is not None
        # Nothing waits in a worker that may not be run again when the worker dies.
        self._leaves_singly = not self.can_retry and not self._has_agents
        self._suspects: deque[PendingPart] = deque()
        self._reserved: Link | None = None  # for suspects
        self._is_suspect_out = False  # the reserved worker has one

    @property
    def num_waiting(self) -> int:
        return len(self._queue) + len(self._suspects)

    @property
    def num_ahead(self) -> int:
        """How many parts wait for their turn."""
        return len(self._queue) - self._num_dropped

    @property
    def due(self) -> float | None:
        """When the batch that waits must leave though it is not full; None if nothing waits."""
        return self._queue.due()

    def admit(self, timeout: float | None, now: float) -> None:
        if self.admission.queue.since:
            self.admission.check(self.num_ahead, timeout, now)

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

    def _ages(self, now: float) -> list[float]:
        """For how long those wait that are in the queue, by sample of them."""
        sample = self._queue.sample()
        ages = [now - part.request.started for part in sample if not part.request.is_done]
        return ages * round(len(self._queue) / max(1, len(sample)))

    def _shed(self, now: float) -> None:
        """Refuse the oldest of what waits if more does than clients have patience for."""
        count = self.admission.num_to_shed(self.num_ahead, now)
        if count:
            waiting = (part for part in self._queue if not part.request.is_done)
            for part in list(islice(waiting, count)):
                self._refuse_late(part, now)

    def _refuse_late(self, part: PendingPart, now: float) -> None:
        """Its answer would not be wanted any more."""
        text = f"{self.label}: it waited for {now - part.request.started:.1f} s, and would be late"
        wait = self.admission.queue.wait(self.num_ahead, now)
        part.request.fail(Overloaded(text, retry_after=wait))

    def withhold(self, link: Link) -> None:
        super().withhold(link)
        self._release(link)

    def remove_worker(self, link: Link) -> None:
        super().remove_worker(link)
        self._release(link)

    def _release(self, link: Link | None) -> None:
        """Let the worker of `link`, if it is the reserved one, have other work again."""
        if link is not None and link is self._reserved:
            self._scheduler.release(link)
            self._reserved, self._is_suspect_out = None, False

    def add_worker(self, link: Link) -> None:
        runs_models = link.owns_models and not self._has_agents
        max_messages = MAX_MESSAGES if runs_models else MAX_MESSAGES_WITHOUT_MODELS
        self._scheduler.add_worker(link, 1 if self._leaves_singly else max_messages)
        self.workers.append(link)
        self._scheduler.schedule(self)

    def put(self, parts: Sequence[PendingPart], now: float) -> None:
        """Take `parts`, which leave when a worker has room."""
        for part in parts:
            part.state = QUEUED
            self._queue.add(part, now)
        self._scheduler.schedule(self)

    def put_back(self, part: PendingPart) -> None:
        """Take `part` again: it is next."""
        if part.is_isolated:
            self._suspects.appendleft(part)
        else:
            part.state = QUEUED
            self._queue.put_back(part)
        self._scheduler.schedule(self)

    def take_waiting(self) -> list[PendingPart]:
        """What waits, taken out."""
        parts = [*self._queue.clear(), *self._suspects]
        self._suspects.clear()
        self._num_dropped = 0
        for part in parts:
            part.state = IDLE
        return parts

    def hand_out(self, now: float) -> bool:
        """Give workers all that may leave now; whether anything did."""
        if self._suspects:
            self._hand_out_suspect(now)
        if self._num_dropped > MAX_DROPPED and 2 * self._num_dropped > len(self._queue):
            self._queue.keep(lambda part: not part.request.is_done)
            self._num_dropped = 0
        has_moved = False
        while self._hand_out_once(now):
            has_moved = True
        if self.num_ahead:
            self.admission.queue.fill(now)
        return has_moved

    def on_empty(self) -> None:
        """The reserved worker has answered everything."""
        if self._is_suspect_out:
            self._release(self._reserved)
        self._scheduler.schedule(self)

    def _hand_out_suspect(self, now: float) -> None:
        """Have the next suspect run by itself: a worker is reserved, and gets it when it has
        nothing else.
        """
        while self._suspects and self._suspects[0].request.is_done:
            self._suspects.popleft()
        if self._is_suspect_out:
            return
        if not self._suspects:
            self._release(self._reserved)
            return
        if self._reserved is None:
            self._reserved = self._scheduler.reserve(self, self.workers)
        if self._reserved is not None and self._scheduler.is_empty(self._reserved):
            self._is_suspect_out = True
            self._scheduler.send([self._suspects.popleft()], self._reserved, now)

    def _hand_out_once(self, now: float) -> bool:
        """Give the freest worker its share of what waits.  False if nothing moved."""
        oldest = self._queue.peek()
        if oldest is None:
            return False
        size = self.report.batch_size
        link, room, num_free = self._scheduler.freest(self.workers, size)
        if link is None:
            return False
        batch = -(-size // max(1, len(oldest.chunks)))  # parts that fill one
        share = max(batch, -(-len(self._queue) // num_free))
        parts = self._queue.take(min(room, batch if self._leaves_singly else share), now)
        if not parts:
            return False
        parts = self._take_wanted(parts, now)
        if parts:
            self._scheduler.send(parts, link, now)
            if len(self.workers) > 1:
                self._make_last(link)
        return True

    def _take_wanted(self, taken: list[PendingPart], now: float) -> list[PendingPart]:
        """Those of `taken`, which have left the queue, that can be answered in time."""
        parts = [part for part in taken if not part.request.is_done]
        self._num_dropped -= len(taken) - len(parts)
        admission = self.admission
        if not admission.queue.since:
            return parts
        admission.queue.drain(len(parts), now, is_empty=not self.num_ahead)
        for part in parts:
            part.state = IDLE  # a refusal ends the other parts of its request: they left as well
        wanted = []
        for part in parts:
            if admission.is_late(part.request.started, part.request.deadline, now):
                self._refuse_late(part, now)
            else:
                wanted.append(part)
        return wanted
