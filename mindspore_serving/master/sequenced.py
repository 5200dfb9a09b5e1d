"""Dispatch of methods with a state: the requests of a sequence go to its worker, one at a time.

Requests of different sequences leave together, once per turn of the event loop, and share batches
in the worker.  Requests without a sequence, where a method takes them, are batched as usual.
"""

import asyncio
import time
from collections.abc import Sequence

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.errors import InvalidInputs, NoInstances
from mindspore_serving.ipc.messages import MethodReport
from mindspore_serving.master.batched import BatchedMethod, BatchScheduler
from mindspore_serving.master.link import Link
from mindspore_serving.master.request import Answer, PendingPart, PendingRequest, WorkerLink
from mindspore_serving.master.sequences import SequenceEntry, SequenceLimits, SequenceTable
from mindspore_serving.wire import splitting


class SequencedMethod(BatchedMethod):
    """Method whose requests belong to sequences.

    It counts as many parts in flight as sequences: their limit is that of the parts.
    """

    def __init__(
        self, scheduler: BatchScheduler, deployment: Deployment, version: int, report: MethodReport
    ) -> None:
        super().__init__(scheduler, deployment, version, report)
        self.cache = None  # an answer depends on the state
        limits = limits_of(deployment, report.state_bytes or 0)
        self.sequences = SequenceTable(self.label, limits)
        self._ready: dict[SequenceEntry, None] = {}  # with waiting parts, and none in flight
        self._timer: asyncio.TimerHandle | None = None

    @property
    def num_waiting(self) -> int:
        return super().num_waiting + sum(len(entry.waiting) for entry in self._ready)

    def has_sequence(self, key: tuple[str, int | str]) -> bool:
        return key in self.sequences

    def num_sequences(self, link: Link | None = None) -> int:
        if link is None:
            return len(self.sequences)
        return sum(entry.link is link for entry in self.sequences)

    def can_rerun(self, part: PendingPart) -> bool:
        is_kept = part.step is None or self.sequences.limits.is_kept
        return is_kept and super().can_rerun(part)

    def split_body(self, request: PendingRequest, codec: str, body: object) -> list[PendingPart]:
        if request.sequence is None:
            return super().split_body(request, codec, body)
        chunks: Sequence[splitting.Chunk] = ()
        try:
            codec, chunks = splitting.wrap(codec, body)
        except NoInstances:
            if not request.sequence.is_end:
                raise
        return [PendingPart(request, 0, codec, chunks, step=request.sequence)]

    def put(self, parts: Sequence[PendingPart], now: float) -> None:
        """Queue `parts`.  Raises ServingError if their sequence is not known, or is missing."""
        step = parts[0].step
        if step is None:
            if self.report.needs_sequence:
                raise InvalidInputs(
                    f"{self.label} has a state: name the sequence of the request by sequence_id"
                )
            super().put(parts, now)
            return
        entry = self.sequences.enter(step, now)
        parts[0].entry = entry
        entry.waiting.append(parts[0])
        self._schedule(entry)
        self._arm()

    def put_back(self, part: PendingPart) -> None:
        if part.entry is None:
            super().put_back(part)
            return
        self.sequences.put_back(part.entry, part)
        self._schedule(part.entry)

    def take_waiting(self) -> list[PendingPart]:
        parts = super().take_waiting()
        for entry in self.sequences:
            parts += entry.waiting
            entry.waiting.clear()
        self._ready.clear()
        return parts

    def remove_worker(self, link: Link) -> None:
        super().remove_worker(link)
        reason = "its worker process has ended"
        for entry in self.sequences.lose(link, reason):
            if link.closed.done():
                entry.running = None  # the dispatcher puts it back, or has answered it
            self._schedule(entry)

    def dispatch(self, now: float) -> bool:
        has_moved = super().dispatch(now)
        batches: dict[Link, list[PendingPart]] = {}
        for entry in list(self._ready):
            link = self._link_of(entry, batches)
            if link is None:
                continue
            del self._ready[entry]
            part = self.sequences.next_part(entry)
            if part is not None:
                part.sequence = self.sequences.message(entry, part, link)
                batches.setdefault(link, []).append(part)
        for link, parts in batches.items():
            self._scheduler.send(parts, link, now, self)
        self._end_dropped()
        return has_moved or bool(batches)

    def on_answers(self, link: WorkerLink, answers: list[Answer]) -> None:
        """Implement `DispatchStrategy.on_answers` for parts of sequences."""
        self._scheduler.on_answers(link, answers)
        now = time.monotonic()
        for part, reply in answers:
            if reply.is_last and part.entry is not None:
                has_failed = reply.failure is not None or any(reply.faults or ())
                self.sequences.answered(part.entry, part, now, has_failed=has_failed)
                if part.entry.waiting:
                    self._schedule(part.entry)

    def _link_of(self, entry: SequenceEntry, batches: dict[Link, list[PendingPart]]) -> Link | None:
        """Return the worker of a sequence, or the best one for a new sequence.

        None while it is withheld, or if there is none.
        """
        if entry.link is not None:
            return next((link for link in self.workers if link is entry.link), None)
        counts = dict.fromkeys(self.workers, 0)
        if len(counts) > 1:
            for other in self.sequences:
                if other.link in counts:
                    counts[other.link] += 1
        return min(counts, key=lambda link: counts[link], default=None)

    def _schedule(self, entry: SequenceEntry) -> None:
        if entry.waiting and entry.running is None:
            self._ready[entry] = None
            self._scheduler.schedule(self)

    def _end_dropped(self) -> None:
        """Tell workers which sequences have ended without a request that says so."""
        for link, numbers in self.sequences.take_dropped().items():
            link.end_sequences(self.report.name, numbers)

    def _arm(self) -> None:
        """Start the timer that ends idle sequences, while there are sequences."""
        if self._timer is None and len(self.sequences):
            seconds = self.sequences.limits.idle_seconds / 4
            self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self.sequences.expire(time.monotonic())
        self._end_dropped()
        self._arm()


def limits_of(deployment: Deployment, state_bytes: int) -> SequenceLimits:
    """Return the limits of the sequences of a method, whose states take `state_bytes` each."""
    by_bytes = deployment.max_sequence_bytes // max(1, state_bytes)
    is_fewer = by_bytes < deployment.max_sequences
    text = f"max_sequence_bytes, {state_bytes} for each" if is_fewer else "max_sequences"
    return SequenceLimits(
        min(by_bytes, deployment.max_sequences),
        deployment.sequence_idle_seconds,
        deployment.keep_sequences,
        text,
    )
