"""Scheduler: which tokens of which sequences the next step computes, and in which cache blocks.

There are no phases.  Every sequence has tokens that are not computed yet: one while it decodes,
many while its prompt is computed.  A step has a budget of tokens.  Sequences that decode come
first, chunks of prompts share the rest (`prompt_sharing`), so that a long prompt delays neither the
answers of other requests nor their prompts:

    |<------------------- max_num_batched_tokens ------------------->|
    | decoding: 1 token each | draft tokens | chunk of prompt | chunk |
                             '-- at most half of the rest ---'

A sequence is admitted when the cache has room for all of its tokens and, if it overtakes waiting
ones, for theirs as well.  A prompt with the same prefix as one that is being computed waits for
those blocks and shares them (`PendingPrefixes`).  When a decoding sequence finds no free block, the
last in order (lowest priority, latest turn of its tenant, youngest) is preempted: it frees all of
its blocks and waits again; later its tokens are recomputed, except those still in the cache.  A
sequence that outgrows the model's `rope_switch` restarts in the same way, as all of its keys
change.

Sequences of batches run in the background (priority BACKGROUND): a step that computes other
sequences has none of them, but for one step in BACKGROUND_TURN, so that they end under any load.
Others that find no room preempt them.

Steps can be scheduled while others are in flight, which a runner computes in order: a step then has
sequences that are in no other one, by groups of those that decode.  None of them is preempted until
its step has ended.  The blocks of one that was aborted can be used at once, as later steps write
them later.

Decisions only: no clock, no I/O, no model.
"""

from bisect import insort
from functools import partial

from mindspore_serving.core.llm_messages import BACKGROUND
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.cache import SequenceCache
from mindspore_serving.llm.engine.fair_turns import FairTurns
from mindspore_serving.llm.engine.prompt_sharing import (
    AdmissionGate,
    PendingPrefixes,
    first_that_fit,
    share_budget,
)
from mindspore_serving.llm.engine.request import check_room
from mindspore_serving.llm.engine.sequence import (
    Scheduled,
    Sequence,
    SequenceStatus,
    StepPlan,
    is_background,
    order_of,
    remove,
    split,
)

BACKGROUND_TURN = 16
BACKGROUND_SHARE = 4
"""A step of the background has at most one in so many of the tokens that a step may have, as a new
request waits until it ends."""


class Scheduler:
    """Owner of the waiting and running sequences, which allocates the blocks of `cache` to them.

    A row's `blocks` are the list of its sequence: valid until the next call of `schedule`, for a
    runner that has begun the step also afterwards.
    """

    def __init__(self, config: EngineConfig, cache: SequenceCache) -> None:
        self.cache, self.pool = cache, cache.pool
        self.waiting: list[Sequence] = []  # both sorted by `order_of`
        self.running: list[Sequence] = []
        self.num_reserved = (
            0  # blocks that new sequences may not take: a prompt to embed needs them
        )
        self.admitted: list[Sequence] = []  # admitted for the first time by the last `schedule`
        self.num_preemptions = 0
        self._num_paused = 0  # steps since sequences in the background had a part
        self._config = config
        self._block_size = cache.block_size
        self._aborted: list[Sequence] = []
        self._turns = FairTurns()

    @property
    def has_work(self) -> bool:
        """True if any sequence waits or runs."""
        return bool(self.running or self.waiting)

    @property
    def num_decoding(self) -> int:
        """Number of running sequences that decode."""
        return sum(sequence.is_decoding for sequence in self.running)

    def can_divide(self, max_tokens: int) -> bool:
        """Return whether `max_tokens` suffice for all prompts that the next steps compute.

        If not, they are computed faster in a step of all sequences.
        """
        prompts = [sequence for sequence in self.running if not sequence.is_decoding]
        num_tokens = sum(sequence.num_left for sequence in prompts)
        room = self.pool.num_free * self._block_size
        for sequence in self.waiting[: max(0, self.cache.max_running - len(self.running))]:
            if not is_background(sequence) and split(self.running)[True]:
                return False  # it may preempt them
            room -= len(sequence.tokens)
            if room < 0:
                break
            num_tokens += len(sequence.tokens)
        return num_tokens <= max_tokens

    def check_room(self, num_tokens: int, priority: int = 0) -> None:
        """Raise Overloaded if no further request of `num_tokens` tokens may wait.

        Those in the background do not count for others.
        """
        counted = self.waiting if priority >= BACKGROUND else split(self.waiting)[False]
        lengths = [len(sequence.tokens) for sequence in counted]
        check_room(self._config, "requests", len(lengths), sum(lengths), num_tokens)

    def add(self, sequence: Sequence) -> None:
        """Queue `sequence`.  The cache must be able to hold its `max_len`."""
        if not sequence.num_charged:
            self._turns.enter(sequence)
        sequence.status = SequenceStatus.WAITING
        self.cache.prepare(sequence)
        insort(self.waiting, sequence, key=order_of)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Run `child` on the blocks of `parent`, or queue it if no more sequences can run."""
        self._turns.fork(child)
        if len(self.running) >= self.cache.max_running:
            self.add(child)
            return
        self.cache.fork(parent, child)
        self._run(child)

    def abort(self, sequence: Sequence) -> None:
        """End `sequence` in any state.

        A step that is scheduled may still write to its blocks, so the next `schedule` frees them:
        for steps after it.
        """
        if sequence.status in (SequenceStatus.WAITING, SequenceStatus.RUNNING):
            remove(
                self.running if sequence.status is SequenceStatus.RUNNING else self.waiting,
                sequence,
            )
            sequence.status = SequenceStatus.ABORTED
            self._turns.leave(sequence)
            self._aborted.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """End `sequence` after its step, and free its blocks."""
        if sequence.status is SequenceStatus.WAITING:  # a fork that had no room to run
            remove(self.waiting, sequence)
        elif sequence.status is SequenceStatus.RUNNING:
            remove(self.running, sequence)
        self._turns.leave(sequence)
        self.cache.release(sequence)
        sequence.status = SequenceStatus.FINISHED

    def schedule(self, num_groups: int = 1, max_tokens: int | None = None) -> Scheduled:
        """Return the next step, which is empty if there is nothing to compute.

        It has one of `num_groups` of the sequences that decode, and at most `max_tokens`.
        """
        for sequence in self._aborted:
            self.cache.release(sequence)
            sequence.status = SequenceStatus.FINISHED
        self._aborted.clear()
        self.admitted.clear()
        for sequence in self.cache.outgrown(self.running):
            self._restart(sequence)
        budget = self._config.max_num_batched_tokens
        if max_tokens is not None:
            budget = min(budget, max_tokens)
        limit = len(self.running) if num_groups == 1 else -(-self.num_decoding // num_groups)
        plan = StepPlan(budget, self.cache.states.assign, limit)
        self._schedule(plan, is_background=False)
        is_busy = plan.rows or any(sequence.is_in_step for sequence in split(self.running)[False])
        self._num_paused = self._num_paused + 1 if is_busy else 0
        if self._num_paused % BACKGROUND_TURN == 0:
            share = max(1, self._config.max_num_batched_tokens // BACKGROUND_SHARE)
            plan.budget = min(plan.budget, share)
            self._schedule(plan, is_background=True)
        for sequence in plan.sequences:
            sequence.is_in_step = True
        return plan.build()

    def finish_step(self, scheduled: Scheduled, sampled: list[list[int]]) -> None:
        """Record that `scheduled` was computed.

        `sampled` has the tokens that follow each row: none for a chunk of a prompt, else the
        accepted draft tokens and one more.
        """
        step = zip(scheduled.sequences, scheduled.step.rows, sampled, strict=True)
        for sequence, row, tokens in step:
            sequence.is_in_step = False
            if sequence.status is not SequenceStatus.RUNNING:
                continue
            if tokens:
                known = len(sequence.tokens)
                sequence.tokens += tokens
                sequence.logits_from = len(sequence.tokens) - 1
                sequence.draft = []
                is_rejected = sequence.logits_from < row.start + len(row.tokens)
                sequence.num_replayed = len(tokens) - 1 if row.state and is_rejected else 0
                sequence.num_computed = sequence.logits_from - sequence.num_replayed
                assert sequence.num_computed >= known
            else:
                end = min(row.start + len(row.tokens), len(sequence.tokens))
                sequence.num_computed = end
                sequence.logits_from = max(sequence.logits_from, end)
            if sequence.num_computed // self._block_size > sequence.num_registered:
                self.cache.register(sequence)
        self.cache.states.keep_snapshots(scheduled)

    def _schedule(self, plan: StepPlan, *, is_background: bool) -> None:
        """Add the rows of the sequences in the background, or of the others."""
        num_preemptions = self.num_preemptions
        self._schedule_decoding(plan, split(self.running)[is_background])
        waiting = split(self.waiting)[is_background]
        if self.num_preemptions != num_preemptions:
            waiting = []
        self._schedule_prompts(plan, split(self.running)[is_background], waiting)

    def _schedule_decoding(self, plan: StepPlan, sequences: list[Sequence]) -> None:
        num_draft_tokens = (plan.budget - len(self.running)) // 2  # leave as much for prompts
        block_size, users = self._block_size, self.pool.users
        position = 0
        while position < len(sequences) and plan.budget > 0 and plan.limit > 0:
            sequence = sequences[position]
            position += 1
            if not sequence.is_decoding or sequence.status is not SequenceStatus.RUNNING:
                continue
            if sequence.is_in_step:
                continue
            plan.limit -= 1
            if sequence.num_left > plan.budget:
                break
            blocks, index = sequence.blocks, (len(sequence.tokens) - 1) // block_size
            # A block that a fork shares as well must not be written: it is copied first.
            has_room = index < len(blocks) and users[blocks[index]] == 1
            if not has_room and not self._make_room(sequence, plan):
                break  # `sequence` was preempted, as the last in order, or waits for other steps
            if sequence.draft:
                draft_tokens = self.cache.fit_draft(sequence, num_draft_tokens)
                num_draft_tokens -= len(draft_tokens)
                plan.add(sequence, [*sequence.tokens[sequence.num_computed :], *draft_tokens])
            else:
                plan.add(sequence, sequence.tokens[sequence.num_computed :])

    def _schedule_prompts(
        self, plan: StepPlan, sequences: list[Sequence], waiting: list[Sequence]
    ) -> None:
        """Add chunks of the prompts of running `sequences`, and of those that it admits."""
        running = [
            sequence for sequence in sequences if not (sequence.is_decoding or sequence.is_in_step)
        ]
        num_admittable = self.cache.max_running - len(sequences)
        if not waiting or plan.budget <= 0 or num_admittable <= 0:
            share_budget(running, running, plan, lambda sequence: True)
            return
        pending = PendingPrefixes(self.pool, self._block_size, self.cache.stored.reading)
        if self.cache.shares_pending:
            for sequence in self.running:
                pending.expect(sequence)
        gate = AdmissionGate(pending, self.cache.max_running, partial(self._admit, pending))
        free = self.pool.num_free - self.num_reserved
        short = [*running, *first_that_fit(waiting[:num_admittable], self._block_size, free)]
        share_budget([*running, *waiting], short, plan, gate.enter)

    def _admit(self, pending: PendingPrefixes, sequence: Sequence) -> bool:
        """Run a waiting sequence if there is room; return whether there was.

        Sequences in the background are preempted for others.
        """
        while not self._has_admitted(sequence):
            victims = [] if is_background(sequence) else split(self.running)[True]
            victims = [victim for victim in victims if not victim.is_in_step]
            room = self.pool.num_free + sum(len(victim.blocks) for victim in victims)
            if not victims or room * self._block_size < len(sequence.tokens) * sequence.width:
                return False
            self._preempt(victims[-1])
        if sequence.num_cached < 0:
            sequence.num_cached = sequence.num_computed
            self.admitted.append(sequence)
            self._turns.begin(sequence)
        remove(self.waiting, sequence)
        self._run(sequence)
        if self.cache.shares_pending:
            pending.expect(sequence)
        return True

    def _has_admitted(self, sequence: Sequence) -> bool:
        num_running = len(self.running)
        # Some blocks are kept for running sequences, so that the new one is not preempted at once.
        num_spare = min(num_running, self.pool.num_blocks // 64) + self.num_reserved
        return num_running < self.cache.max_running and self.cache.admit(sequence, num_spare)

    def _make_room(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Allocate an unshared block for the next token of `sequence`.

        If no block is free, preempts from the end of `running`; returns False if that reached
        `sequence`, or one in another step.
        """
        pool, blocks = self.pool, sequence.blocks
        index = (len(sequence.tokens) - 1) // self._block_size
        while pool.num_free == 0:
            victim = self.running[-1]
            if victim.is_in_step:
                return False
            self._preempt(victim)
            if victim is sequence:
                return False
            if index < len(blocks) and pool.users[blocks[index]] == 1:
                return True  # only the victim shared the block
        plan.copies += self.cache.append(sequence)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self._restart(sequence)

    def _restart(self, sequence: Sequence) -> None:
        remove(self.running, sequence)
        self.cache.release(sequence)
        sequence.restart()
        self.add(sequence)

    def _run(self, sequence: Sequence) -> None:
        sequence.status = SequenceStatus.RUNNING
        insort(self.running, sequence, key=order_of)
