"""Which tokens of which sequences the next step computes, and in which cache blocks.

There are no phases.  Every sequence has tokens that are not computed yet: one while it decodes,
many while its prompt is computed.  A step has room for a number of tokens: sequences that decode
come first, chunks of prompts share the rest (`prompt_sharing`), so that a long prompt delays
neither the answers of others nor their prompts.

A sequence is admitted when the cache has room for all of its tokens, and, if it passes others, for
theirs.  One whose prompt begins as a
prompt does that is being computed waits for those blocks, and shares them.  When there is no block
for one that decodes, the last in order (lowest priority, youngest) is preempted: it gives all of
its blocks back and waits again; later its tokens are computed anew, except those still in the
cache.  So does one whose keys are all others from some length on.

Decisions only: no clock, no I/O, no model.
"""

from bisect import insort
from functools import partial

from mindspore_serving.llm.config import EngineConfig, check_room
from mindspore_serving.llm.engine.cache import SequenceCache
from mindspore_serving.llm.engine.prompt_sharing import ComingBlocks, Entrance, share_room, that_fit
from mindspore_serving.llm.engine.sequence import (
    Scheduled,
    Sequence,
    SequenceStatus,
    StepPlan,
    drop,
    order_of,
)


class Scheduler:
    """Owns the waiting and the running sequences, and decides who gets the blocks of `cache`.

    A row's `blocks` are the list of its sequence: valid until the next call of `schedule`.
    """

    def __init__(self, config: EngineConfig, cache: SequenceCache) -> None:
        self.cache, self.pool = cache, cache.pool
        self.waiting: list[Sequence] = []  # both in order
        self.running: list[Sequence] = []
        self.num_reserved = 0  # blocks kept free of new sequences, for a prompt to embed
        self.admitted: list[Sequence] = []  # for the first time, by the last `schedule`
        self.num_preemptions = 0
        self._config = config
        self._block_size = cache.block_size
        self._aborted: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def check_room(self, num_tokens: int) -> None:
        """Raise Overloaded if so many more tokens may not wait."""
        lengths = [len(sequence.tokens) for sequence in self.waiting]
        check_room(self._config, "requests", len(lengths), sum(lengths), num_tokens)

    def add(self, sequence: Sequence) -> None:
        """Queue `sequence`.  The cache must be able to hold its `max_len`."""
        sequence.status = SequenceStatus.WAITING
        self.cache.enter(sequence)
        insort(self.waiting, sequence, key=order_of)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Run `child` on the blocks of `parent`, or let it wait if no more sequences can run."""
        if len(self.running) >= self.cache.max_running:
            self.add(child)
            return
        self.cache.fork(parent, child)
        self._run(child)

    def abort(self, sequence: Sequence) -> None:
        """End `sequence` in any state.  A step under way may still write to its blocks, so they
        are given back when the next one is scheduled.
        """
        if sequence.status in (SequenceStatus.WAITING, SequenceStatus.RUNNING):
            drop(
                self.running if sequence.status is SequenceStatus.RUNNING else self.waiting,
                sequence,
            )
            sequence.status = SequenceStatus.ABORTED
            self._aborted.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """End `sequence` after its step: its blocks are free at once."""
        if sequence.status is SequenceStatus.WAITING:  # a fork that found no room to run
            drop(self.waiting, sequence)
        elif sequence.status is SequenceStatus.RUNNING:
            drop(self.running, sequence)
        self.cache.give_back(sequence)
        sequence.status = SequenceStatus.FINISHED

    def schedule(self) -> Scheduled:
        """The next step.  It is empty if there is nothing to compute."""
        for sequence in self._aborted:
            self.cache.give_back(sequence)
            sequence.status = SequenceStatus.FINISHED
        self._aborted.clear()
        self.admitted.clear()
        for sequence in self.cache.outgrown(self.running):
            self._restart(sequence)
        num_preemptions = self.num_preemptions
        plan = StepPlan(self._config.max_num_batched_tokens, self.cache.states.place)
        self._schedule_decoding(plan)
        self._schedule_prompts(plan, admits=self.num_preemptions == num_preemptions)
        return plan.done()

    def finish_step(self, scheduled: Scheduled, sampled: list[list[int]]) -> None:
        """Record that `scheduled` was computed.  `sampled` has, for each row, the tokens that
        follow: none for a chunk of a prompt, else the right guesses and one more.
        """
        step = zip(scheduled.sequences, scheduled.step.rows, sampled, strict=True)
        for sequence, row, tokens in step:
            if sequence.status is not SequenceStatus.RUNNING:
                continue
            if tokens:
                sequence.num_computed = len(sequence.tokens) + len(tokens) - 1
                sequence.tokens += tokens
                sequence.wanted_from = sequence.num_computed
                sequence.draft = []
            else:
                end = min(row.start + len(row.tokens), len(sequence.tokens))
                sequence.num_computed = end
                sequence.wanted_from = max(sequence.wanted_from, end)
            if sequence.num_computed // self._block_size > sequence.num_registered:
                self.cache.register(sequence)
        self.cache.states.settle(scheduled)

    def _schedule_decoding(self, plan: StepPlan) -> None:
        num_guesses = (plan.budget - len(self.running)) // 2  # the rest is for prompts
        block_size, users, running = self._block_size, self.pool.users, self.running
        position = 0
        while position < len(running):  # the end of `running` may be preempted on the way
            sequence = running[position]
            position += 1
            start = sequence.num_computed
            if not sequence.is_decoding:
                continue
            blocks, index = sequence.blocks, start // block_size
            has_room = index < len(blocks) and users[blocks[index]] == 1
            if not has_room and not self._make_room(sequence, plan):
                break  # it was the last in order
            if sequence.draft:
                guesses = self.cache.fit_guesses(sequence, num_guesses)
                num_guesses -= len(guesses)
                plan.add(sequence, [sequence.tokens[-1], *guesses])
            else:
                plan.add(sequence, sequence.tokens[-1:])

    def _schedule_prompts(self, plan: StepPlan, *, admits: bool) -> None:
        """Pieces of the prompts of running sequences, and of those that are admitted for it."""
        running = [one for one in self.running if one.num_left > 1]
        has_place = plan.budget > 0 and len(self.running) < self.cache.max_running
        if not (admits and self.waiting and has_place):
            share_room(running, running, plan, lambda sequence: True)
            return
        coming = ComingBlocks(self.pool, self._block_size, self.cache.disk.reading)
        if self.cache.shares_coming:
            for sequence in self.running:
                coming.expect(sequence)
        entrance = Entrance(coming, self.cache.max_running, partial(self._admit, coming))
        seats = self.cache.max_running - len(self.running)
        free = self.pool.num_free - self.num_reserved
        quick = [*running, *that_fit(self.waiting[:seats], self._block_size, free)]
        share_room([*running, *self.waiting], quick, plan, entrance.enter)

    def _admit(self, coming: ComingBlocks, sequence: Sequence) -> bool:
        """Run one that waits, if there is room."""
        num_running = len(self.running)
        # Some blocks are kept for running sequences, so that the new one is not preempted at once.
        num_spare = min(num_running, self.pool.num_blocks // 64) + self.num_reserved
        if num_running >= self.cache.max_running or not self.cache.admit(sequence, num_spare):
            return False
        if sequence.num_cached < 0:
            sequence.num_cached = sequence.num_computed
            self.admitted.append(sequence)
        drop(self.waiting, sequence)
        self._run(sequence)
        if self.cache.shares_coming:
            coming.expect(sequence)
        return True

    def _make_room(self, sequence: Sequence, plan: StepPlan) -> bool:
        """A block of its own for the next token of `sequence`, preempting from the end if none is
        free.  False if it had to be preempted itself.
        """
        pool, blocks = self.pool, sequence.blocks
        index = sequence.num_computed // self._block_size
        while pool.num_free == 0:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
            if index < len(blocks) and pool.users[blocks[index]] == 1:
                return True  # it was shared with the victim alone
        plan.copies += self.cache.append(sequence)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self._restart(sequence)

    def _restart(self, sequence: Sequence) -> None:
        drop(self.running, sequence)
        self.cache.give_back(sequence)
        sequence.num_computed = sequence.num_registered = 0
        sequence.draft = []
        self.add(sequence)

    def _run(self, sequence: Sequence) -> None:
        sequence.status = SequenceStatus.RUNNING
        insort(self.running, sequence, key=order_of)
