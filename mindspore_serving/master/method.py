"""A method of a servable version in the master: what both ways, batched and streamed, share."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.llm_messages import METHODS, Generate
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.ipc.messages import MethodReport
from mindspore_serving.master.admission import AdmissionControl
from mindspore_serving.master.link import Link
from mindspore_serving.master.request import PendingPart, PendingRequest, cut
from mindspore_serving.master.shares import Share
from mindspore_serving.metrics.series import Series
from mindspore_serving.tracing.span import METHOD, SERVABLE, VERSION, Attributes
from mindspore_serving.wire import cutting

GENERATING = frozenset(name for name, kind in METHODS.items() if kind is Generate)
MOST_PARTS = 4096  # of a request: a hundred thousand would take most of a second to make


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """How many requests the engines of a language model compute at a time, and how many more may
    wait there.
    """

    most_running: float = inf
    most_waiting: float = inf


class ServedMethod:
    """One method, and the workers that can run it; among equals the first one is next."""

    is_cut_singly = False  # every instance of a request is a part of its own
    measures_all = False  # also the requests that come and go while nothing waits

    def __init__(self, deployment: Deployment, version: int, report: MethodReport) -> None:
        self.version = version
        self.report = report
        self.share = Share(deployment.name)
        self.max_queue_seconds = deployment.max_queue_seconds
        self.is_watched = False  # what waits for too long is looked for
        self.admission = AdmissionControl()
        self.series = Series(deployment.name, version, report.name)
        self.attributes: Attributes = {  # of spans
            SERVABLE: deployment.name,
            VERSION: version,
            METHOD: report.name,
        }
        self.can_retry = report.retry and deployment.retry
        self.label = f"servable({deployment.name}) method({report.name})"
        self.workers: list[Link] = []  # that may get work
        self.withheld: list[Link] = []  # that may not for now
        self.capacity = EngineCapacity()

    def admit(self, timeout: float | None, now: float) -> None:
        """Raise Overloaded if a request would be answered too late."""
        raise NotImplementedError

    def count_done(self, request: PendingRequest, code: int, now: float) -> None:
        """`request` has ended, by a reply (`code` says which) or because its client left.  Called
        for failures, for all if `measures_all`, and else while there is a queue.
        """
        raise NotImplementedError

    def on_dropped(self, part: PendingPart) -> None:
        """Nobody waits any more for `part`, which is in the queue."""

    def on_suspect_replied(self, part: PendingPart) -> None:
        """`part`, of which a worker may have died, has got output from another."""

    def set_capacity(self, card: ModelCard, num_workers: int) -> None:
        """Its language model is in so many workers.  What an engine would refuse need not go there;
        one that has fewer at a time than it may refuses itself.
        """
        if self.report.name in GENERATING and num_workers:
            most = inf if card.max_num_waiting is None else card.max_num_waiting * num_workers
            self.capacity = EngineCapacity(card.max_num_seqs * num_workers, most)
            self.admission.shared.most_running = self.capacity.most_running

    @property
    def is_served(self) -> bool:
        """Whether there is a worker that can run it, now or when it is no longer withheld."""
        return bool(self.workers or self.withheld)

    def add_worker(self, link: Link) -> None:
        """`link` may get work."""
        raise NotImplementedError

    def withhold(self, link: Link) -> None:
        """`link` is to get no work for now."""
        if link in self.workers:
            self.workers.remove(link)
            self.withheld.append(link)

    def restore(self, link: Link) -> None:
        """`link`, which was withheld, may get work again."""
        if link in self.withheld:
            self.withheld.remove(link)
            self.add_worker(link)

    def remove_worker(self, link: Link) -> None:
        """`link` is gone, or is to be."""
        for links in (self.workers, self.withheld):
            if link in links:
                links.remove(link)

    def cut_body(self, request: PendingRequest, codec: str, body: Any) -> list[PendingPart]:
        """The body as it is where one worker gets all of it; else as `cut`."""
        if len(self.workers) <= 1 and not self.is_cut_singly:
            codec, chunks = cutting.whole(codec, body)
            return [PendingPart(request, 0, codec, chunks)]
        codec, chunks = cutting.split(codec, body)
        return self.cut(request, codec, chunks)

    def cut(
        self, request: PendingRequest, codec: str, chunks: Sequence[cutting.Chunk]
    ) -> list[PendingPart]:
        """The instances `chunks` as parts, for all workers.  Raises InvalidInputs without any."""
        if not chunks:
            raise InvalidInputs(f"Instances count of request cannot be 0, {self.label}")
        num_workers, batch_size = len(self.workers), self.report.batch_size
        if self.is_cut_singly:
            num_workers, batch_size = min(len(chunks), MOST_PARTS), 1
        return cut(request, codec, chunks, num_workers=num_workers, batch_size=batch_size)

    def _make_last(self, link: Link) -> None:
        """Among equal workers the one that waited longest is next."""
        self.workers.remove(link)
        self.workers.append(link)
