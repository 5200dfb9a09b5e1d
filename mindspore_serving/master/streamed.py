"""Streamed dispatch: a request goes at once to the worker with the fewest open streams.

A request with a prompt goes to a worker that had the beginning of the prompt, unless that worker
has far more streams than another.

After a worker has died, the parts that it was running are quarantined: another worker gets them one
at a time, the next one after the first has given output.

It is for methods whose requests do not wait for each other in a worker, such as those of language
models, whose engines schedule them: there is no queue, no window and no delay.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Container, Sequence

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.prefixes import PrefixMap, hashes
from mindspore_serving.errors import Code, Overloaded
from mindspore_serving.ipc.messages import MethodReport
from mindspore_serving.master.admission import AdmissionControl, OpenRequest
from mindspore_serving.master.link import Link
from mindspore_serving.master.method import ServedMethod
from mindspore_serving.master.patience import PERIOD, SHORTEST
from mindspore_serving.master.rates import Arrival
from mindspore_serving.master.request import Answer, PendingPart, PendingRequest, WorkerLink

# A worker is preferred for its prefix unless it has OVERLOADED times as many open streams as the
# worker with the fewest, and SPARE more.
OVERLOADED = 2.0
SPARE = 4
SERVED_SHARE = 0.5  # of clients, to be served before they leave: they leave for many reasons


class StreamBalancer:
    """Balancer that counts the open streams of each worker, of all its methods together."""

    def __init__(self, deliver: Callable[[list[Answer]], None]) -> None:
        self._num_open: dict[WorkerLink, int] = {}
        self._deliver = deliver

    def add_worker(self, link: Link) -> None:
        """Start to count the streams of a worker."""
        self._num_open.setdefault(link, 0)

    def remove_worker(self, link: WorkerLink) -> None:
        """Remove a worker that has died."""
        self._num_open.pop(link, None)

    def choose(self, workers: Sequence[Link], preferred: Container[WorkerLink] = ()) -> Link:
        """Return the `preferred` worker with the fewest open streams.

        If it is overloaded, or none is preferred, return the worker with the fewest of all.
        """
        num_open = self._num_open
        idlest = min(workers, key=num_open.__getitem__)
        if not preferred:
            return idlest
        candidates = (link for link in workers if link in preferred)
        link = min(candidates, key=num_open.__getitem__, default=idlest)
        return idlest if num_open[link] > OVERLOADED * num_open[idlest] + SPARE else link

    def send(self, part: PendingPart, link: Link, now: float) -> None:
        """Send `part` to the worker of `link`."""
        self._num_open[link] += 1
        link.send_work([part], now, self)

    def on_answers(self, link: WorkerLink, answers: list[Answer]) -> None:
        """Implement `DispatchStrategy.on_answers`."""
        self._num_open[link] -= sum(reply.is_last for _, reply in answers)
        self._deliver(answers)


class StreamedMethod(ServedMethod):
    """Method whose replies are streams.

    Parts of a lost worker wait until the next turn of the event loop; all parts wait while there is
    no worker.
    """

    measures_all = True

    def __init__(
        self, balancer: StreamBalancer, deployment: Deployment, version: int, report: MethodReport
    ) -> None:
        super().__init__(deployment, version, report)
        self.admission = AdmissionControl(SERVED_SHARE, self._ages)
        self._balancer = balancer
        self._waiting: list[PendingPart] = []
        self._prefixes: PrefixMap[WorkerLink] = PrefixMap()
        self._quarantined: deque[PendingPart] = deque()
        self._quarantined_part: PendingPart | None = None  # that a worker has, without output yet
        self._open: dict[PendingRequest, Arrival] = {}  # in order of arrival
        self._shed_at = 0.0  # time of the last `_shed`

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._quarantined)

    def admit(self, timeout: float | None, now: float, tenant: str = "") -> None:
        capacity = self.capacity
        num_waiting = len(self._open) - capacity.max_running
        if num_waiting >= capacity.max_waiting:
            raise Overloaded(
                f"{num_waiting:.0f} requests wait already, at most {capacity.max_waiting:.0f} "
                "may; try again",
                retry_after=self.admission.shared.sojourn(len(self._open)) / 2,
            )
        self.admission.check_shared(timeout, now)

    def count_done(self, request: PendingRequest, code: int, now: float) -> None:
        if self._quarantined_part is not None and self._quarantined_part.request is request:
            self.on_quarantined_reply(self._quarantined_part)
        arrival = self._open.pop(request, None)
        if arrival is None:
            return  # it was refused on arrival, or runs in the background
        admission, until = self.admission, request.first_output or now
        seconds, patience = until - arrival.started, admission.patience
        is_late = code in (Code.CANCELLED, Code.DEADLINE_EXCEEDED) and not request.first_output
        if is_late and seconds >= SHORTEST:
            admission.late_shared(arrival, now)
        elif code == Code.OK:
            work = admission.shared.work(arrival, now) * seconds / max(now - arrival.started, 1e-9)
            admission.answered_shared(work, seconds, now)
        admission.shared.end(now)
        if code == Code.CANCELLED and is_late and seconds >= SHORTEST:
            patience.left(seconds, now)
        elif patience.is_known:
            patience.stayed(seconds, now)
        if is_late and now - self._shed_at >= PERIOD:
            self._shed_at = now
            self._shed(now)

    def _shed(self, now: float) -> None:
        """Refuse requests that keep others from being answered in time."""
        waiting = [request for request in self._open if not request.first_output]
        opened = [OpenRequest(self._open[request], request.deadline) for request in waiting]
        for index in self.admission.shed_shared(opened, now):
            waited = now - opened[index].arrival.started
            text = f"{self.label}: the request took {waited:.1f} s, its answer would be too late"
            after = self.admission.shared.sojourn(len(self._open))
            waiting[index].fail(Overloaded(text, retry_after=after))

    def _ages(self, now: float) -> list[float]:
        """Return the ages of requests without output, in seconds."""
        return [
            now - arrival.started
            for request, arrival in self._open.items()
            if not request.first_output
        ]

    def on_quarantined_reply(self, part: PendingPart) -> None:
        if part is self._quarantined_part:
            self._quarantined_part = None
            asyncio.get_running_loop().call_soon(self._put_waiting)

    def add_worker(self, link: Link) -> None:
        self._balancer.add_worker(link)
        self.workers.append(link)
        self._put_waiting()

    def put(self, parts: Sequence[PendingPart], now: float) -> None:
        """Send each of `parts` to the worker that is best by then; queue them if there is none."""
        for part in parts:
            request = part.request
            is_known = request in self._open or request.is_background or request.is_done
            if not is_known:
                self._open[request] = self.admission.shared.begin(now)
            if not self.workers:
                self._waiting.append(part)
            elif not part.request.is_done:
                link = self._choose(part.request)
                self._balancer.send(part, link, now)
                self._make_last(link)

    def remove_worker(self, link: Link) -> None:
        super().remove_worker(link)
        self._prefixes.remove(link)

    def _choose(self, request: PendingRequest) -> Link:
        prefix, request.prefix = request.prefix, ()  # it may be large
        if len(self.workers) == 1 or not (prefix_hashes := hashes(prefix)):
            return self._balancer.choose(self.workers)
        holders = self._prefixes.find(prefix_hashes, self.workers)
        link = self._balancer.choose(self.workers, holders)
        self._prefixes.add(prefix_hashes, link)
        return link

    def put_back(self, part: PendingPart) -> None:
        """Queue `part` until the next turn of the loop.

        Other workers may be lost in this turn.
        """
        if part.is_quarantined:
            self._quarantined.append(part)
        else:
            self._waiting.append(part)
        asyncio.get_running_loop().call_soon(self._put_waiting)

    def take_waiting(self) -> list[PendingPart]:
        """Remove and return all queued parts."""
        parts, self._waiting = [*self._waiting, *self._quarantined], []
        self._quarantined.clear()
        return parts

    def _put_waiting(self) -> None:
        parts, self._waiting = self._waiting, []
        now = time.monotonic()
        self.put(parts, now)
        if self._quarantined_part is not None and self._quarantined_part.request.is_done:
            self._quarantined_part = None
        while self.workers and self._quarantined and self._quarantined_part is None:
            part = self._quarantined.popleft()
            if not part.request.is_done:
                self._quarantined_part = part
                self.put([part], now)
