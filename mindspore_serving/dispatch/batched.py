"""The batched way: requests wait in a queue per method and leave for the freest worker.

Work is handed out once per turn of the event loop, so that requests that arrive together leave
together, in one message per worker.  A worker has at most what its `Window` allows.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from mindspore_serving.aio import Ticker
from mindspore_serving.batching.batcher import Batcher
from mindspore_serving.core.deployment import BatchPolicy, Deployment
from mindspore_serving.dispatch.link import Link
from mindspore_serving.dispatch.method import ServedMethod
from mindspore_serving.dispatch.pacing import Window
from mindspore_serving.dispatch.request import Answer, RequestPart, WorkerLink
from mindspore_serving.ipc.messages import MethodReport

# One message that the worker runs and one that waits there; what comes meanwhile waits here.  A
# worker that has its models run by others may have more: its instances only wait.
MOST_MESSAGES, MOST_MESSAGES_WITHOUT_MODELS = 2, 8


class BatchScheduler:
    """Hands out what waits in the batched methods, once per turn of the loop."""

    def __init__(self, deliver: Callable[[list[Answer]], None]) -> None:
        self.windows: dict[WorkerLink, Window] = {}  # one for all methods of a worker
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._ticker = Ticker(self._loop, self.hand_out)
        self._waiting: dict[BatchedMethod, None] = {}  # methods where something does, in order

    def schedule(self, method: "BatchedMethod") -> None:
        """Something waits in `method`."""
        self._waiting[method] = None
        self._ticker.arm()

    def hand_out(self) -> None:
        now = time.monotonic()  # uvloop's clock counts milliseconds
        for method in list(self._waiting):
            method.hand_out(now)
            if not len(method.queue):
                del self._waiting[method]
            else:
                self._wake_when_due(method, now)

    def on_answers(self, link: WorkerLink, answers: list[Answer]) -> None:
        self.windows[link].answered(answers, time.monotonic())
        self._deliver(answers)
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
    """A method and its queue."""

    def __init__(
        self, scheduler: BatchScheduler, deployment: Deployment, version: int, report: MethodReport
    ) -> None:
        super().__init__(deployment, version, report)
        policy = _policy(deployment, report)
        self.is_cut_singly = policy.preferred_size > 0  # it counts instances, not requests
        self.queue: Batcher[RequestPart] = Batcher(policy)
        self.wake_at = 0.0  # when the loop will look at a delayed batch
        self._scheduler = scheduler

    @property
    def num_waiting(self) -> int:
        return len(self.queue)

    def add_worker(self, link: Link) -> None:
        most_messages = MOST_MESSAGES if link.owns_models else MOST_MESSAGES_WITHOUT_MODELS
        self._scheduler.windows.setdefault(link, Window(most_messages))
        self.workers.append(link)
        self._scheduler.schedule(self)

    def put(self, parts: Sequence[RequestPart], now: float) -> None:
        """Take `parts`, which leave when a worker has room."""
        for part in parts:
            self.queue.add(part, now)
        self._scheduler.schedule(self)

    def put_back(self, part: RequestPart) -> None:
        """Take `part` again, whose worker was lost: it is next."""
        self.queue.put_back(part)
        self._scheduler.schedule(self)

    def take_waiting(self) -> list[RequestPart]:
        """What waits, taken out."""
        return self.queue.clear()

    def hand_out(self, now: float) -> None:
        """Give workers all that may leave now."""
        while self._hand_out_once(now):
            pass

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
        parts = self.queue.take(min(room, share), now)
        if not parts:
            return False
        parts = [part for part in parts if not part.request.is_done]
        if parts:
            link.send_work(parts, now, self._scheduler)
            self._scheduler.windows[link].sent(parts, now)
            if len(self.workers) > 1:
                self._make_last(link)
        return True

    def _freest(self, batch_size: int) -> tuple[Link | None, int, int]:
        """The worker that has filled the least of its window, its room, and how many have any.

        Not the one with the most room: a fast worker has more of it than an idle slow one, and
        would be given every part of a request.
        """
        freest, its_room, least, num_free = None, 0, 1.0, 0
        for link in self.workers:
            window = self._scheduler.windows[link]
            room = window.room(batch_size)
            if room <= 0:
                continue
            num_free += 1
            held = window.num_held
            filled = held / (held + room)
            if filled < least:
                freest, its_room, least = link, room, filled
        return freest, its_room, num_free


def _policy(deployment: Deployment, report: MethodReport) -> BatchPolicy:
    """With a delay and no preferred size, a batch of the method's own size need not wait."""
    policy = deployment.batching
    if policy.max_wait and not policy.preferred_size:
        return replace(policy, preferred_size=report.batch_size)
    return policy
