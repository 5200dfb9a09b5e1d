"""Sequences of one method in the master: their order, their workers, their limits and their ends.

It has no clock and no I/O: `now` is an argument, and `sequenced` sends the parts.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from mindspore_serving.core.sequences import SequenceStep
from mindspore_serving.errors import InvalidInputs, Overloaded, SequenceLost, ServingError
from mindspore_serving.ipc.messages import SequencePart
from mindspore_serving.master.request import PendingPart, WorkerLink

Key = tuple[str, int | str]
MAX_ENDED = 4096  # ended sequences whose ends are remembered, for errors


@dataclass(frozen=True, slots=True)
class SequenceLimits:
    """Limits of the sequences of a method.

    `is_kept`: the master has a copy of the state, with which another worker can continue.
    """

    max_sequences: int
    idle_seconds: float
    is_kept: bool = False
    limit_text: str = "max_sequences"  # which option sets the limit


@dataclass(slots=True, eq=False)
class SequenceEntry:
    """Sequence: its worker, the part that runs there, and those that wait for their turn."""

    key: Key
    number: int
    touched: float  # time of its last request or answer
    link: WorkerLink | None = None  # that has the state
    running: PendingPart | None = None
    waiting: deque[PendingPart] = field(default_factory=deque)
    is_ending: bool = False  # its last request so far is its end
    state: bytes | None = None  # the last one of a worker, if it is kept


class SequenceTable:
    """Sequences by owner and id."""

    def __init__(self, label: str, limits: SequenceLimits) -> None:
        self.limits = limits
        self.num_evicted: dict[str, int] = {"idle": 0, "lost": 0}  # by reason
        self._label = label
        self._entries: OrderedDict[Key, SequenceEntry] = OrderedDict()  # least recently used first
        self._why_ended: OrderedDict[Key, str] = OrderedDict()
        self._last_number = 0
        self._dropped: dict[WorkerLink, list[int]] = {}  # numbers that workers still have

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[SequenceEntry]:
        return iter(list(self._entries.values()))

    def enter(self, step: SequenceStep, now: float) -> SequenceEntry:
        """Return the sequence of a request, which the caller appends to `waiting`.

        A start begins a sequence, also one whose id is in use.  Raises InvalidInputs for a request
        of a sequence that has not begun or has ended, SequenceLost for one whose state is
        lost, and Overloaded.
        """
        key = step.owner, step.id
        entry = self._entries.get(key)
        if entry is None or entry.is_ending:
            if not step.is_start:
                raise self._unknown(key)
            if entry is None:
                entry = self._new(key, now)
        self._why_ended.pop(key, None)
        entry.is_ending = step.is_end
        self._touch(entry, now)
        return entry

    def _new(self, key: Key, now: float) -> SequenceEntry:
        limits = self.limits
        if len(self._entries) >= limits.max_sequences:
            raise Overloaded(
                f"{self._label}: there are {len(self._entries)} sequences, which is the limit "
                f"({limits.limit_text}); end one by sequence_end, or wait: a sequence ends when it "
                f"is idle for {limits.idle_seconds:g} s",
                retry_after=limits.idle_seconds,
            )
        self._last_number += 1
        entry = SequenceEntry(key, self._last_number, now)
        self._entries[key] = entry
        return entry

    def _unknown(self, key: Key) -> ServingError:
        why = self._why_ended.get(key, "")
        text = f"{self._label}: sequence {_shown(key[1])} {why or 'is not known'}; begin one with "
        text += "sequence_start"
        return SequenceLost(text) if why.startswith("was lost") else InvalidInputs(text)

    def next_part(self, entry: SequenceEntry) -> PendingPart | None:
        """Remove and return the part of a sequence to be sent; None if there is none.

        Parts whose requests have ended meanwhile are left out; a start or an end among them still
        takes effect, without a run.
        """
        if entry.running is not None:
            return None
        while entry.waiting:
            part = entry.waiting.popleft()
            step = part.step
            assert step is not None
            if not part.request.is_done:
                entry.running = part
                return part
            if step.is_start or step.is_end:
                self._drop(entry)
                self._end_steps(entry, "has ended: a request of it was cancelled")
        return None

    def take_dropped(self) -> dict[WorkerLink, list[int]]:
        """Return the sequences whose states workers are to drop, by worker."""
        dropped, self._dropped = self._dropped, {}
        return dropped

    def _drop(self, entry: SequenceEntry) -> None:
        if entry.link is not None:
            self._dropped.setdefault(entry.link, []).append(entry.number)

    def message(self, entry: SequenceEntry, part: PendingPart, link: WorkerLink) -> SequencePart:
        """Return what the worker of `link` needs to know of the sequence of `part`."""
        step = part.step
        assert step is not None
        is_new = link is not entry.link
        entry.link = link
        state = entry.state if is_new and not step.is_start else None
        is_kept = self.limits.is_kept
        return SequencePart(entry.number, step.is_start, step.is_end, is_kept, state, step.id)

    def answered(
        self, entry: SequenceEntry, part: PendingPart, now: float, *, has_failed: bool
    ) -> None:
        """Record the answer to `part`: its sequence may end, and its next part may be sent.

        A sequence ends with its last request, whether it succeeds or not, and with a start that
        failed: that has begun nothing.
        """
        step = part.step
        assert step is not None
        if entry.running is part:
            entry.running = None
        if part.new_state is not None:
            entry.state = part.new_state
        self._touch(entry, now)
        if step.is_end or (step.is_start and has_failed):
            self._end_steps(
                entry, "has ended" if step.is_end else "has not begun: its start failed"
            )

    def put_back(self, entry: SequenceEntry, part: PendingPart) -> None:
        """Return the part that was running to the head of its sequence."""
        if entry.running is part:
            entry.running = None
        entry.waiting.appendleft(part)

    def lose(self, link: WorkerLink, reason: str) -> list[SequenceEntry]:
        """Handle the loss of a worker; return its sequences.

        They continue on another worker if their states are kept; else they end.
        """
        lost = [entry for entry in self._entries.values() if entry.link is link]
        for entry in lost:
            entry.link = None
            if not self.limits.is_kept:
                self.num_evicted["lost"] += 1
                entry.running = None
                self._end_steps(entry, f"was lost: {reason}")
        return lost

    def expire(self, now: float) -> list[SequenceEntry]:
        """End and return the sequences that have been idle for too long."""
        ended = []
        seconds = self.limits.idle_seconds
        for entry in self:
            if entry.touched + seconds > now:
                break
            if entry.running is not None or entry.waiting:
                self._touch(entry, now)
                continue
            self.num_evicted["idle"] += 1
            self._drop(entry)
            self._remove(entry, f"has ended: it was idle for over {seconds:g} s")
            ended.append(entry)
        return ended

    def _end_steps(self, entry: SequenceEntry, why: str) -> None:
        """End a sequence; requests that wait fail, up to one that begins it again."""
        entry.state = None
        while entry.waiting:
            step = entry.waiting[0].step
            if step is not None and step.is_start and not entry.waiting[0].request.is_done:
                return
            self._why_ended[entry.key] = why
            entry.waiting.popleft().request.fail(self._unknown(entry.key))
        self._remove(entry, why)

    def _remove(self, entry: SequenceEntry, why: str) -> None:
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        self._why_ended[entry.key] = why
        while len(self._why_ended) > MAX_ENDED:
            self._why_ended.popitem(last=False)

    def _touch(self, entry: SequenceEntry, now: float) -> None:
        entry.touched = now
        if entry.key in self._entries:
            self._entries.move_to_end(entry.key)


def _shown(sequence_id: int | str) -> str:
    return f"{sequence_id!r}" if isinstance(sequence_id, str) else str(sequence_id)
