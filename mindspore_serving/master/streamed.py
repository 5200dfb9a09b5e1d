"""The streamed way: a request goes at once to the worker with the fewest open streams, or, if it
has a prompt, to one that had the beginning of it, unless that has far more than others.

What a worker computed when it died goes to another one a request at a time: the next when that has
given output.

For methods whose requests do not wait for each other in a worker, such as those of language
models, whose engines schedule them: no queue, no window, no delay.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Container, Sequence

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.errors import Code, Overloaded
from mindspore_serving.ipc.messages import MethodReport
from mindspore_serving.master.admission import AdmissionControl, Open
from mindspore_serving.master.link import Link
from mindspore_serving.master.method import ServedMethod
from mindspore_serving.master.patience import PERIOD, SHORTEST
from mindspore_serving.master.prefixes import PrefixMap, hashes
from mindspore_serving.master.rates import Begun
from mindspore_serving.master.request import Answer, PendingPart, PendingRequest, WorkerLink

OVERLOADED = 2.0  # times as many open streams as the worker with the fewest has, and
SPARE = 4  # ... so many more: then another computes the beginning of a prompt as well
STAYING = 0.5  # the share of clients that is to be served before they leave: they leave for much


class StreamBalancer:
    """Chooses workers by their open streams, of all methods of a worker together."""

    def __init__(self, deliver: Callable[[list[Answer]], None]) -> None:
        self._num_open: dict[WorkerLink, int] = {}
        self._deliver = deliver

    def add_worker(self, link: Link) -> None:
        """Count the streams of `link` from now on, if that is not done yet."""
        self._num_open.setdefault(link, 0)

    def forget(self, link: WorkerLink) -> None:
        """The worker of `link` has died."""
        self._num_open.pop(link, None)

    def choose(self, workers: Sequence[Link], preferred: Container[WorkerLink] = ()) -> Link:
        """The worker with the fewest open streams; of those that are `preferred`, unless that one
        is overloaded.
        """
        num_open = self._num_open
        least = min(workers, key=num_open.__getitem__)
        if not preferred:
            return least
        candidates = (link for link in workers if link in preferred)
        link = min(candidates, key=num_open.__getitem__, default=least)
        return least if num_open[link] > OVERLOADED * num_open[least] + SPARE else link

    def send(self, part: PendingPart, link: Link, now: float) -> None:
        """Give `part` to the worker of `link`."""
        self._num_open[link] += 1
        link.send_work([part], now, self)

    def on_answers(self, link: WorkerLink, answers: list[Answer]) -> None:
        """See `DispatchStrategy.on_answers`."""
        self._num_open[link] -= sum(reply.is_last for _, reply in answers)
        self._deliver(answers)


class StreamedMethod(ServedMethod):
    """A method that streams.  What a lost worker had waits here until the next turn of the loop,
    and anything while there is no worker.
    """

    measures_all = True

    def __init__(
        self, balancer: StreamBalancer, deployment: Deployment, version: int, report: MethodReport
    ) -> None:
        super().__init__(deployment, version, report)
        self.admission = AdmissionControl(STAYING, self._ages)
        self._balancer = balancer
        self._waiting: list[PendingPart] = []
        self._prefixes = PrefixMap()
        self._suspects: deque[PendingPart] = deque()  # a worker may have died of them
        self._suspect: PendingPart | None = None  # that a worker has, and has not replied to
        self._open: dict[PendingRequest, Begun] = {}  # in the order in which they came
        self._looked = 0.0  # when what is open was looked through last

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._suspects)

    def admit(self, timeout: float | None, now: float) -> None:
        capacity = self.capacity
        num_waiting = len(self._open) - capacity.most_running
        if num_waiting >= capacity.most_waiting:
            raise Overloaded(
                f"{num_waiting:.0f} requests wait already, at most {capacity.most_waiting:.0f} "
                "may; try again",
                retry_after=self.admission.shared.sojourn(len(self._open)) / 2,
            )
        self.admission.check_shared(timeout, now)

    def count_done(self, request: PendingRequest, code: int, now: float) -> None:
        begun = self._open.pop(request, None)
        if begun is None:
            return  # it was refused before it was counted
        admission, until = self.admission, request.first_output or now
        seconds, patience = until - begun.started, admission.patience
        is_late = code in (Code.CANCELLED, Code.DEADLINE_EXCEEDED) and not request.first_output
        if is_late and seconds >= SHORTEST:
            admission.late_shared(begun, now)
        elif code == Code.OK:
            work = admission.shared.work(begun, now) * seconds / max(now - begun.started, 1e-9)
            admission.answered_shared(work, seconds, now)
        admission.shared.end(now)
        if code == Code.CANCELLED and is_late and seconds >= SHORTEST:
            patience.left(seconds, now)
        elif patience.is_known:
            patience.stayed(seconds, now)
        if is_late and now - self._looked >= PERIOD:
            self._looked = now
            self._shed(now)
        if self._suspect is not None and self._suspect.request is request:
            self.on_suspect_replied(self._suspect)

    def _shed(self, now: float) -> None:
        """Refuse what keeps others from being answered in time."""
        waiting = [request for request in self._open if not request.first_output]
        opened = [Open(self._open[request], request.deadline) for request in waiting]
        for index in self.admission.shed_shared(opened, now):
            waited = now - opened[index].begun.started
            text = f"{self.label}: it has taken {waited:.1f} s, and would be late"
            after = self.admission.shared.sojourn(len(self._open))
            waiting[index].fail(Overloaded(text, retry_after=after))

    def _ages(self, now: float) -> list[float]:
        """For how long those wait that have no output yet."""
        return [
            now - begun.started for request, begun in self._open.items() if not request.first_output
        ]

    def on_suspect_replied(self, part: PendingPart) -> None:
        if part is self._suspect:
            self._suspect = None
            asyncio.get_running_loop().call_soon(self._put_waiting)

    def add_worker(self, link: Link) -> None:
        self._balancer.add_worker(link)
        self.workers.append(link)
        self._put_waiting()

    def put(self, parts: Sequence[PendingPart], now: float) -> None:
        """Give each of `parts` to the worker that has the fewest by then."""
        for part in parts:
            if part.request not in self._open and not part.request.is_done:
                self._open[part.request] = self.admission.shared.begin(now)
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
        prefix, request.prefix = request.prefix, ()  # which may be large
        if len(self.workers) == 1 or not (pieces := hashes(prefix)):
            return self._balancer.choose(self.workers)
        holders = self._prefixes.find(pieces, self.workers)
        link = self._balancer.choose(self.workers, holders)
        self._prefixes.add(pieces, link)
        return link

    def put_back(self, part: PendingPart) -> None:
        """Take `part` again; other workers may be lost in the same turn."""
        if part.is_isolated:
            self._suspects.append(part)
        else:
            self._waiting.append(part)
        asyncio.get_running_loop().call_soon(self._put_waiting)

    def take_waiting(self) -> list[PendingPart]:
        """What waits, taken out."""
        parts, self._waiting = [*self._waiting, *self._suspects], []
        self._suspects.clear()
        return parts

    def _put_waiting(self) -> None:
        parts, self._waiting = self._waiting, []
        now = time.monotonic()
        self.put(parts, now)
        if self._suspect is not None and self._suspect.request.is_done:
            self._suspect = None
        while self.workers and self._suspects and self._suspect is None:
            part = self._suspects.popleft()
            if not part.request.is_done:
                self._suspect = part
                self.put([part], now)
