"""The streamed way: a request goes at once to the worker with the fewest open streams.

For methods whose requests do not wait for each other in a worker, such as those of language
models, whose engines schedule them: no queue, no window, no delay.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.dispatch.link import Link
from mindspore_serving.dispatch.method import ServedMethod
from mindspore_serving.dispatch.request import WAITS, Answer, RequestPart, WorkerLink
from mindspore_serving.ipc.messages import MethodReport


class StreamBalancer:
    """Counts the open streams of each worker, of all its methods together."""

    def __init__(self, deliver: Callable[[list[Answer]], None]) -> None:
        self.num_open: dict[WorkerLink, int] = {}
        self._deliver = deliver

    def send(self, part: RequestPart, link: Link, now: float) -> None:
        self.num_open[link] += 1
        link.send_work([part], now, self)
        part.sent = WAITS  # in the worker

    def on_answers(self, link: WorkerLink, answers: list[Answer]) -> None:
        self.num_open[link] -= sum(reply.is_last for _, reply in answers)
        self._deliver(answers)


class StreamedMethod(ServedMethod):
    """A method that streams.  What a lost worker had waits here until the next turn of the loop,
    and anything while there is no worker."""

    def __init__(
        self, balancer: StreamBalancer, deployment: Deployment, version: int, report: MethodReport
    ) -> None:
        super().__init__(deployment, version, report)
        self._balancer = balancer
        self._waiting: list[RequestPart] = []
        self._ahead: dict[RequestPart, None] = {}  # in workers, that have not begun, in order

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_ahead(self) -> int:
        return len(self._ahead)

    def parts_ahead(self) -> Iterable[RequestPart]:
        return self._ahead

    def on_dropped(self, part: RequestPart) -> None:
        part.sent = 0.0
        self._ahead.pop(part, None)

    def on_begun(self, part: RequestPart, now: float) -> None:
        """The worker computes `part`, or has answered it without saying so."""
        part.sent = now
        self._ahead.pop(part, None)
        self.admission.queue.drain(1, now, is_empty=not self._ahead)

    def add_worker(self, link: Link) -> None:
        self._balancer.num_open.setdefault(link, 0)
        self.workers.append(link)
        self._put_waiting()

    def put(self, parts: Sequence[RequestPart], now: float) -> None:
        """Give each of `parts` to the worker that has the fewest by then."""
        for part in parts:
            if not self.workers:
                self._waiting.append(part)
            elif not part.request.is_done:
                self._ahead[part] = None
                self.admission.queue.fill(now)
                link = min(self.workers, key=self._balancer.num_open.__getitem__)
                self._balancer.send(part, link, now)
                self._make_last(link)

    def put_back(self, part: RequestPart) -> None:
        """Take `part` again; other workers may be lost in the same turn."""
        self._waiting.append(part)
        asyncio.get_running_loop().call_soon(self._put_waiting)

    def take_waiting(self) -> list[RequestPart]:
        """What waits, taken out."""
        parts, self._waiting = self._waiting, []
        return parts

    def _put_waiting(self) -> None:
        self.put(self.take_waiting(), time.monotonic())
