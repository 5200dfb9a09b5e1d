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
cache.  So does one that grows beyond `rope_switch` tokens, where the model has one: all of its keys
are others from then on.

Decisions only: no clock, no I/O, no model.
"""

from bisect import insort
from functools import partial

from mindspore_serving.llm.config import EngineConfig, check_room
from mindspore_serving.llm.engine.blocks import BlockPool
from mindspore_serving.llm.engine.coming import ComingBlocks
from mindspore_serving.llm.engine.disk_cache import DiskCache
from mindspore_serving.llm.engine.prompt_sharing import Entrance, share_room, that_fit
from mindspore_serving.llm.engine.sequence import Plan, Scheduled, Sequence, Status, drop, order_of
from mindspore_serving.llm.engine.states import StatePool


class Scheduler:
    """Owns the waiting and the running sequences and the blocks.

    A row's `blocks` are the list of its sequence: valid until the next call of `schedule`.
    """

    def __init__(
        self, config: EngineConfig, num_blocks: int, block_size: int, num_slots: int = 0,
        rope_switch: int = 0,
    ) -> None:  # fmt: skip
        self.pool = BlockPool(num_blocks)
        self.states = None
        self._most_running = config.max_num_seqs
        if num_slots:
            keeps = config.enable_prefix_caching
            self.states = StatePool(num_slots, block_size, keeps=keeps)
            self._most_running = min(config.max_num_seqs, self.states.most_running)
        self.waiting: list[Sequence] = []  # both in order
        self.running: list[Sequence] = []
        self.num_reserved = 0  # blocks kept free of new sequences, for a prompt to embed
        self.disk: DiskCache | None = None
        self.admitted: list[Sequence] = []  # for the first time, by the last `schedule`
        self.num_preemptions = 0
        # Tokens of admitted sequences, and how many of them were in the cache.
        self.num_cache_queries = self.num_cache_hits = 0
        self._config = config
        self._shares = config.enable_prefix_caching and not num_slots
        self._block_size = block_size
        self._rope_switch = rope_switch
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
        sequence.status = Status.WAITING
        sequence.choose_table(self._rope_switch)
        insort(self.waiting, sequence, key=order_of)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Run `child` on the blocks of `parent`, or let it wait if no more sequences can run."""
        if len(self.running) >= self._most_running:
            self.add(child)
            return
        child.num_computed = parent.num_computed
        child.blocks = parent.blocks[: self._blocks_for(child.num_computed)]
        child.num_registered = parent.num_registered
        self.pool.share(child.blocks)
        if self.states is not None:
            self.states.share(parent, child)
        self._run(child)

    def abort(self, sequence: Sequence) -> None:
        """End `sequence` in any state.  A step under way may still write to its blocks, so they
        are given back when the next one is scheduled."""
        if sequence.status in (Status.WAITING, Status.RUNNING):
            drop(self.running if sequence.status is Status.RUNNING else self.waiting, sequence)
            sequence.status = Status.ABORTED
            self._aborted.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """End `sequence` after its step: its blocks are free at once."""
        if sequence.status is Status.WAITING:  # a fork that found no room to run
            drop(self.waiting, sequence)
        elif sequence.status is Status.RUNNING:
            drop(self.running, sequence)
        self._give_back(sequence)
        sequence.status = Status.FINISHED

    def schedule(self) -> Scheduled:
        """The next step.  It is empty if there is nothing to compute."""
        for sequence in self._aborted:
            self._give_back(sequence)
            sequence.status = Status.FINISHED
        self._aborted.clear()
        self.admitted.clear()
        if self._rope_switch:
            self._restart_outgrown()
        num_preemptions = self.num_preemptions
        place = None if self.states is None else self.states.place
        plan = Plan(self._config.max_num_batched_tokens, place)
        self._schedule_decoding(plan)
        self._schedule_prompts(plan, admits=self.num_preemptions == num_preemptions)
        return plan.done()

    def finish_step(self, scheduled: Scheduled, sampled: list[list[int]]) -> None:
        """Record that `scheduled` was computed.  `sampled` has, for each row, the tokens that
        follow: none for a chunk of a prompt, else the right guesses and one more."""
        step = zip(scheduled.sequences, scheduled.step.rows, sampled, strict=True)
        for sequence, row, tokens in step:
            if sequence.status is not Status.RUNNING:
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
                self._register(sequence)
            if self.states is not None:
                self.states.settle(sequence, row)

    def _schedule_decoding(self, plan: Plan) -> None:
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
                guesses = self._room_for_guesses(sequence, num_guesses)
                num_guesses -= len(guesses)
                plan.add(sequence, [sequence.tokens[-1], *guesses])
            else:
                plan.add(sequence, sequence.tokens[-1:])

    def _schedule_prompts(self, plan: Plan, *, admits: bool) -> None:
        """Pieces of the prompts of running sequences, and of those that are admitted for it."""
        running = [one for one in self.running if one.num_left > 1]
        has_place = plan.budget > 0 and len(self.running) < self._most_running
        if not (admits and self.waiting and has_place):
            share_room(running, running, plan, lambda sequence: True)
            return
        reading = self.disk.reading if self.disk else ()
        coming = ComingBlocks(self.pool, self._block_size, reading)
        if self._shares:
            for sequence in self.running:
                coming.expect(sequence)
        entrance = Entrance(coming, self._most_running, partial(self._admit, coming))
        seats = self._most_running - len(self.running)
        free = self.pool.num_free - self.num_reserved
        quick = [*running, *that_fit(self.waiting[:seats], self._block_size, free)]
        share_room([*running, *self.waiting], quick, plan, entrance.enter)

    def _admit(self, coming: ComingBlocks, sequence: Sequence) -> bool:
        """Run one that waits, if there is room."""
        if len(self.running) >= self._most_running or not self._allocate(sequence):
            return False
        drop(self.waiting, sequence)
        self._run(sequence)
        if self._shares:
            coming.expect(sequence)
        return True

    def _allocate(self, sequence: Sequence) -> bool:
        """Blocks for all tokens of a waiting sequence, shared where the cache holds them.

        The last token is always computed: its logits are what is wanted."""
        pool = self.pool
        if pool.num_free == 0:
            return False
        shared: list[int] = []
        if self._config.enable_prefix_caching:
            shared = pool.find(sequence.hash_known(self._block_size))
        if self.states is not None:
            shared = shared[: self.states.find(sequence, len(shared))]
        num_new = self._blocks_for(len(sequence.tokens)) - len(shared)
        # Some are kept for running sequences, so that the new one is not preempted at once.
        spare = min(len(self.running), pool.num_blocks // 64)
        if num_new + pool.num_unused(shared) + spare + self.num_reserved > pool.num_free:
            return False
        pool.share(shared)
        if self.states is not None:
            self.states.begin(sequence, len(shared))
        sequence.blocks = shared + [pool.allocate() for _ in range(num_new)]
        sequence.num_registered = len(shared)
        sequence.num_computed = len(shared) * self._block_size
        self.num_cache_queries += len(sequence.tokens)
        self.num_cache_hits += sequence.num_computed
        if sequence.num_cached < 0:
            sequence.num_cached = sequence.num_computed
            self.admitted.append(sequence)
        return True

    def _make_room(self, sequence: Sequence, plan: Plan) -> bool:
        """A block of its own for the next token of `sequence`, preempting from the end if none is
        free.  False if it had to be preempted itself."""
        pool, blocks = self.pool, sequence.blocks
        index = sequence.num_computed // self._block_size
        while pool.num_free == 0:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
            if index < len(blocks) and pool.users[blocks[index]] == 1:
                return True  # it was shared with the victim alone
        block = pool.allocate()
        if index == len(blocks):
            blocks.append(block)
        else:  # shared with a fork
            plan.copies.append((blocks[index], block))
            pool.free([blocks[index]])
            blocks[index] = block
        return True

    def _room_for_guesses(self, sequence: Sequence, most: int) -> list[int]:
        """The guesses that fit the step, the sequence and the free blocks."""
        length = len(sequence.tokens)
        count = max(0, min(len(sequence.draft), most, sequence.room))
        if self._rope_switch and not sequence.is_long:
            count = min(count, self._rope_switch - length)
        blocks = sequence.blocks
        missing = self._blocks_for(length + count) - len(blocks)
        while missing > 0 and self.pool.num_free:
            blocks.append(self.pool.allocate())
            missing -= 1
        return sequence.draft[: min(count, len(blocks) * self._block_size - length)]

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self._restart(sequence)

    def _restart(self, sequence: Sequence) -> None:
        drop(self.running, sequence)
        self._give_back(sequence)
        sequence.num_computed = sequence.num_registered = 0
        sequence.draft = []
        self.add(sequence)

    def _restart_outgrown(self) -> None:
        most = self._rope_switch
        for sequence in [one for one in self.running if len(one.tokens) > most and not one.is_long]:
            self._restart(sequence)

    def _register(self, sequence: Sequence) -> None:
        if not self._config.enable_prefix_caching:
            return
        full = sequence.num_computed // self._block_size
        hashes = sequence.hash_blocks(full, self._block_size)
        for index in range(sequence.num_registered, full):
            self.pool.register(sequence.blocks[index], hashes[index])
        if self.disk is not None and not sequence.adapter:
            self.disk.added(hashes[sequence.num_registered :])
        sequence.num_registered = full

    def _run(self, sequence: Sequence) -> None:
        sequence.status = Status.RUNNING
        insort(self.running, sequence, key=order_of)

    def _give_back(self, sequence: Sequence) -> None:
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        if self.states is not None:
            self.states.give_back(sequence)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)
