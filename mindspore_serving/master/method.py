"""Method of a servable version in the master: what batched and streamed methods share."""

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
from mindspore_serving.master.answer_cache import AnswerCache
from mindspore_serving.master.link import Link
from mindspore_serving.master.request import PendingPart, PendingRequest, split_parts
from mindspore_serving.master.shared_answers import AnswerLevel
from mindspore_serving.master.shares import Share
from mindspore_serving.metrics.series import Series
from mindspore_serving.tracing.span import METHOD, SERVABLE, VERSION, Attributes
from mindspore_serving.wire import splitting

GENERATE_METHODS = frozenset(name for name, kind in METHODS.items() if kind is Generate)
MAX_PARTS = 4096  # per request: creating a hundred thousand parts would take most of a second


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """Number of requests that the engines of a language model can run, and queue beyond that."""

    max_running: float = inf
    max_waiting: float = inf


class ServedMethod:
    """Method with the workers that can run it; among workers of equal load the first is next."""

    splits_instances = False  # whether each instance of a request is a part of its own
    measures_all = False  # whether requests are measured also while no queue exists

    def __init__(self, deployment: Deployment, version: int, report: MethodReport) -> None:
        self.version = version
        self.report = report
        self.share = Share(deployment.name)
        self.max_queue_seconds = deployment.max_queue_seconds
        self.is_watched = False  # whether a check of `max_queue_seconds` is scheduled
        self.admission = AdmissionControl()
        self.series = Series(deployment.name, version, report.name)
        self.attributes: Attributes = {  # of spans
            SERVABLE: deployment.name,
            VERSION: version,
            METHOD: report.name,
        }
        self.can_retry = report.retry and deployment.retry
        self.label = f"servable({deployment.name}) method({report.name})"
        self.workers: list[Link] = []  # that can get parts
        self.withheld: list[Link] = []  # that cannot for now
        self.capacity = EngineCapacity()
        self.cache: AnswerCache | None = None
        self.shared_answers: AnswerLevel | None = None  # behind the cache

    def admit(self, timeout: float | None, now: float, tenant: str = "") -> None:
        """Raise Overloaded if a request would be answered too late."""
        raise NotImplementedError

    def count_done(self, request: PendingRequest, code: int, now: float) -> None:
        """Record the end of `request`, by a reply with `code` or by its cancellation.

        It is called for failures; for all requests if `measures_all`, or while there is a queue.
        """
        raise NotImplementedError

    def has_sequence(self, key: tuple[str, int | str]) -> bool:
        """Return whether a sequence, of an owner and with an id, has begun and has not ended."""
        return False

    def num_sequences(self, link: Link | None = None) -> int:
        """Return the number of sequences that have not ended, all or those of a worker."""
        return 0

    def on_dropped(self, part: PendingPart) -> None:
        """Handle the end of the request of `part`, which is in the queue."""

    def on_quarantined_reply(self, part: PendingPart) -> None:
        """Handle the first output of `part`, which was quarantined."""

    def set_capacity(self, card: ModelCard, num_workers: int) -> None:
        """Set the capacity of the language model, which is in `num_workers` workers.

        Requests beyond it are refused here already.  An engine whose own limit is lower refuses
        them itself.
        """
        if self.report.name in GENERATE_METHODS and num_workers:
            limit = inf if card.max_num_waiting is None else card.max_num_waiting * num_workers
            self.capacity = EngineCapacity(card.max_num_seqs * num_workers, limit)
            self.admission.shared.max_running = self.capacity.max_running

    def can_rerun(self, part: PendingPart) -> bool:
        """Return whether another worker can run `part` again."""
        return self.can_retry

    @property
    def is_served(self) -> bool:
        """True if a worker can run the method, now or when it is no longer withheld."""
        return bool(self.workers or self.withheld)

    def add_worker(self, link: Link) -> None:
        """Add a worker that can get parts."""
        raise NotImplementedError

    def withhold(self, link: Link) -> None:
        """Give the worker no parts for now."""
        if link in self.workers:
            self.workers.remove(link)
            self.withheld.append(link)

    def restore(self, link: Link) -> None:
        """Give parts again to a worker that was withheld."""
        if link in self.withheld:
            self.withheld.remove(link)
            self.add_worker(link)

    def remove_worker(self, link: Link) -> None:
        """Remove a worker that has died or is leaving."""
        for links in (self.workers, self.withheld):
            if link in links:
                links.remove(link)

    def split_body(self, request: PendingRequest, codec: str, body: Any) -> list[PendingPart]:
        """Split the body of a request like `split`; a single worker gets the body unchanged."""
        if len(self.workers) <= 1 and not self.splits_instances:
            codec, chunks = splitting.wrap(codec, body)
            return [PendingPart(request, 0, codec, chunks)]
        codec, chunks = splitting.split(codec, body)
        return self.split(request, codec, chunks)

    def split(
        self, request: PendingRequest, codec: str, chunks: Sequence[splitting.Chunk]
    ) -> list[PendingPart]:
        """Split `chunks`, one per instance, into parts for all workers.

        Raises InvalidInputs if there are none.
        """
        if not chunks:
            raise InvalidInputs(f"Instances count of request cannot be 0, {self.label}")
        num_workers, batch_size = len(self.workers), self.report.batch_size
        if self.splits_instances:
            num_workers, batch_size = min(len(chunks), MAX_PARTS), 1
        return split_parts(request, codec, chunks, num_workers=num_workers, batch_size=batch_size)

    def _make_last(self, link: Link) -> None:
        """Move a worker to the end, so that workers of equal load take turns."""
        self.workers.remove(link)
        self.workers.append(link)
