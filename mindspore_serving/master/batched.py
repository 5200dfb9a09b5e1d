"""The batched way: requests wait in a queue per method and leave for the freest worker.

Work is handed out once per turn of the event loop, so that requests that arrive together leave
together, in one message per worker.  A worker has at most what its `Window` allows.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from mindspore_serving.aio import Ticker
from mindspore_serving.batching.batcher import Batcher
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.errors import Code, Overloaded
from mindspore_serving.ipc.messages import MethodReport
from mindspore_serving.master.admission import Admission
from mindspore_serving.master.link import Link
from mindspore_serving.master.method import ServedMethod
from mindspore_serving.master.pacing import Window
from mindspore_serving.master.patience import STAYING
from mindspore_serving.master.request import (
    WAITS,
    Answer,
    PendingPart,
    PendingRequest,
    WorkerLink,
)

# One message that the worker runs and one that waits there; what comes meanwhile waits here.  A
# worker that has its models run by others, or by agents, may have more: its instances only wait.
MOST_MESSAGES, MOST_MESSAGES_WITHOUT_MODELS = 2, 8
MOST_DROPPED = 1024  # parts that nobody waits for, before they are taken out of the queue


class BatchScheduler:
    """Hands out what waits in the batched methods, once per turn of the loop."""

    def __init__(self, deliver: Callable[[list[Answer]], None]) -> None:
        self.windows: dict[WorkerLink, Window] = {}  # one for all methods of a worker
        self.reserved: dict[WorkerLink, BatchedMethod] = {}  # workers that suspects get
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._ticker = Ticker(self._loop, self.hand_out)
        self._waiting: dict[BatchedMethod, None] = {}  # methods where something does, in order

    def schedule(self, method: "BatchedMethod") -> None:
        """Something waits in `method`."""
        self._waiting[method] = None
        if not self._ticker.is_armed:
            self._ticker.arm()

    def hand_out(self) -> None:
        now = time.monotonic()  # uvloop's clock counts milliseconds
        for method in list(self._waiting):
            has_moved = method.hand_out(now)
            if not len(method.queue) and not method.suspects:
                del self._waiting[method]
                continue
            if has_moved:  # it is the last next time: methods of a worker take turns
                del self._waiting[method]
                self._waiting[method] = None
            self._wake_when_due(method, now)

    def on_answers(self, link: WorkerLink, answers: list[Answer]) -> None:
        self.windows[link].answered(answers, time.monotonic())
        self._deliver(answers)
        if self.reserved and link in self.reserved and not self.windows[link].num_held:
            self.reserved[link].on_empty(link)
        if self._waiting:
            self._ticker.arm()

    def _wake_when_due(self, method: "BatchedMethod", now: float) -> None:
        due = method.queue.due()
        if due is not None and due > now and method.wake_at != due:
            method.wake_at = due
            self._loop.call_later(due - now, self._wake, method)

    def _wake(self, method: "BatchedMethod") -> None:
        method.wake_at = 0.0  # the loop's clock is coarse: if it is early, wait for the rest
        self._ticker.arm()


class BatchedMethod(ServedMethod):
    def __init__(
        self, scheduler: BatchScheduler, deployment: Deployment, version: int, report: MethodReport
    ) -> None:
        super().__init__(deployment, version, report)
        policy = deployment.batching.of_size(report.batch_size)
        self.is_cut_singly = policy.preferred_size > 0  # it counts instances, not requests
        self.admission = Admission(STAYING, self._ages)
        self.queue: Batcher[PendingPart] = Batcher(policy)
        self.suspects: deque[PendingPart] = deque()  # a worker may have died of them
        self.wake_at = 0.0  # when the loop will look at a delayed batch
        self._has_agents = deployment.gang is not None
        # Nothing waits in a worker that may not be run again when the worker dies.
        self._leaves_singly = not self.can_retry and not self._has_agents
        self._is_suspect_out = False
        self._num_dropped = 0  # in the queue, that nobody waits for any more
        self._scheduler = scheduler

    @property
    def num_waiting(self) -> int:
        return len(self.queue) + len(self.suspects)

    @property
    def num_ahead(self) -> int:
        """How many parts wait for their turn."""
        return len(self.queue) - self._num_dropped

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
        if code == Code.OK and request.parts[0].sent > 0:
            self.admission.ran(until - request.parts[0].sent)
        elif code == Code.CANCELLED:
            self._shed(now)

    def on_dropped(self, part: PendingPart) -> None:
        part.sent = 0.0
        self._num_dropped += 1

    def _ages(self, now: float) -> list[float]:
        """For how long those wait that are in the queue, by some of them."""
        some = self.queue.some()
        ages = [now - part.request.started for part in some if not part.request.is_done]
        return ages * round(len(self.queue) / max(1, len(some)))

    def _shed(self, now: float) -> None:
        """Refuse the oldest of what waits if more does than clients have patience for."""
        count = self.admission.num_to_shed(self.num_ahead, now)
        if count:
            waiting = (part for part in self.queue if not part.request.is_done)
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

    def add_worker(self, link: Link) -> None:
        runs_models = link.owns_models and not self._has_agents
        most_messages = MOST_MESSAGES if runs_models else MOST_MESSAGES_WITHOUT_MODELS
        window = self._scheduler.windows.setdefault(link, Window(most_messages))
        if self._leaves_singly:
            window.limit_messages(1)
        self.workers.append(link)
        self._scheduler.schedule(self)

    def put(self, parts: Sequence[PendingPart], now: float) -> None:
        """Take `parts`, which leave when a worker has room."""
        for part in parts:
            part.sent = WAITS
            self.queue.add(part, now)
        self._scheduler.schedule(self)

    def put_back(self, part: PendingPart) -> None:
        """Take `part` again: it is next."""
        if part.is_alone:
            self.suspects.appendleft(part)
        else:
            part.sent = WAITS
            self.queue.put_back(part)
        self._scheduler.schedule(self)

    def take_waiting(self) -> list[PendingPart]:
        """What waits, taken out."""
        parts = [*self.queue.clear(), *self.suspects]
        self.suspects.clear()
        self._num_dropped = 0
        for part in parts:
            part.sent = 0.0
        return parts

    def hand_out(self, now: float) -> bool:
        """Give workers all that may leave now; whether anything did."""
        if self.suspects:
            self._hand_out_suspect(now)
        if self._num_dropped > MOST_DROPPED and 2 * self._num_dropped > len(self.queue):
            self.queue.keep(lambda part: not part.request.is_done)
            self._num_dropped = 0
        has_moved = False
        while self._hand_out_once(now):
            has_moved = True
        if self.num_ahead:
            self.admission.queue.fill(now)
        return has_moved

    def on_empty(self, link: WorkerLink) -> None:
        """The worker that is reserved for suspects has answered everything."""
        if self._is_suspect_out:
            self._release(link)
        self._scheduler.schedule(self)

    def _hand_out_suspect(self, now: float) -> None:
        """Have the next suspect run by itself: a worker is reserved, and gets it when it has
        nothing else."""
        reserved, windows = self._scheduler.reserved, self._scheduler.windows
        while self.suspects and self.suspects[0].request.is_done:
            self.suspects.popleft()
        link = next((link for link in self.workers if reserved.get(link) is self), None)
        if not self.suspects and link is not None and not self._is_suspect_out:
            self._release(link)
        if not self.suspects or self._is_suspect_out:
            return
        if link is None:
            free = [link for link in self.workers if link not in reserved]
            if not free:
                return
            link = min(free, key=lambda link: windows[link].num_held)
            reserved[link] = self
        if not windows[link].num_held:
            self._is_suspect_out = True
            suspect = [self.suspects.popleft()]
            link.send_work(suspect, now, self._scheduler)
            windows[link].sent(suspect, now)

    def _release(self, link: WorkerLink) -> None:
        if self._scheduler.reserved.get(link) is self:
            del self._scheduler.reserved[link]
        self._is_suspect_out = False

    def _hand_out_once(self, now: float) -> bool:
        """Give the freest worker its share of what waits.  False if nothing moved."""
        oldest = self.queue.peek()
        if oldest is None:
            return False
        size = self.report.batch_size
        link, room, num_free = self._freest(size)
        if link is None:
            return False
        batch = -(-size // max(1, len(oldest.chunks)))  # parts that fill one
        share = max(batch, -(-len(self.queue) // num_free))
        parts = self.queue.take(min(room, batch if self._leaves_singly else share), now)
        if not parts:
            return False
        parts = self._take_wanted(parts, now)
        if parts:
            link.send_work(parts, now, self._scheduler)
            self._scheduler.windows[link].sent(parts, now)
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
            part.sent = 0.0  # a refusal ends the other parts of its request: they left as well
        wanted = []
        for part in parts:
            if admission.is_late(part.request.started, part.request.deadline, now):
                self._refuse_late(part, now)
            else:
                wanted.append(part)
        return wanted

    def _freest(self, batch_size: int) -> tuple[Link | None, int, int]:
        """The worker that has filled the least of its window, its room, and how many have any.

        Not the one with the most room: a fast worker has more of it than an idle slow one.
        """
        freest, its_room, least, num_free = None, 0, 1.0, 0
        reserved = self._scheduler.reserved
        for link in self.workers:
            window = self._scheduler.windows[link]
            room = window.room(batch_size)
            if room <= 0 or (reserved and link in reserved):
                continue
            num_free += 1
            held = window.num_held
            filled = held / (held + room)
            if filled < least:
                freest, its_room, least = link, room, filled
        return freest, its_room, num_free
