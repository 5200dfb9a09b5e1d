"""Drives a scheduler with the toy runner, greedily, and checks its books after every decision."""

from collections import Counter

import numpy as np

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.cache import SequenceCache
from mindspore_serving.llm.engine.scheduler import Scheduled, Scheduler
from mindspore_serving.llm.engine.sequence import Sequence, SequenceStatus
from mindspore_serving.llm.engine.states import StatePool
from tests.llm.toy import ToyRunner


def make(num_blocks=16, block_size=4, *, num_slots=0, **options):
    """A scheduler and the toy whose cache it schedules, with a state if there are slots."""
    config = EngineConfig(
        **{"max_num_seqs": 8, "max_num_batched_tokens": 16, "block_size": block_size, **options}
    )
    runner = ToyRunner(num_blocks, block_size, num_slots=num_slots)
    return Scheduler(config, SequenceCache(config, runner)), runner


def sequence(tokens, max_len, arrival=0, priority=0, **options):
    return Sequence(list(tokens), max_len, (priority, arrival, 0), **options)


def sample(scheduled: Scheduled, logits) -> list[list[int]]:
    """For each row: the guesses that are likeliest, and the likeliest token after them."""
    best = np.argmax(logits, axis=1).tolist() if len(logits) else []
    sampled, first = [], 0
    for row, seq in zip(scheduled.step.rows, scheduled.sequences, strict=True):
        known = len(seq.tokens) - row.start
        guesses = row.tokens[known:]
        count = len(guesses) + 1 if len(row.tokens) >= known else 0
        choices = best[first + row.num_logits - count : first + row.num_logits] if count else []
        first += row.num_logits
        right = 0
        while right < len(guesses) and choices[right] == guesses[right]:
            right += 1
        sampled.append(choices[: right + 1][: seq.max_len - len(seq.tokens)])
    return sampled


def advance(scheduler: Scheduler, runner: ToyRunner) -> Scheduled:
    """One step; sequences end at `max_len`."""
    scheduled = scheduler.schedule()
    check(scheduler, scheduled)
    if not scheduled.step.rows:
        return scheduled
    sampled = sample(scheduled, runner.run(scheduled.step))
    scheduler.finish_step(scheduled, sampled)
    for seq in scheduled.sequences:
        if seq.status is SequenceStatus.RUNNING and len(seq.tokens) >= seq.max_len:
            scheduler.finish(seq)
    return scheduled


def run_all(scheduler: Scheduler, runner: ToyRunner, most=10_000) -> int:
    """Steps until nothing is left to do; how many."""
    for count in range(most):
        if not scheduler.has_work:
            return count
        scheduled = advance(scheduler, runner)
        assert scheduled.step.rows, "there is work, but nothing was scheduled"
    raise AssertionError(f"still working after {most} steps")


def check(scheduler: Scheduler, scheduled: Scheduled) -> None:
    """No block is leaked, lost or shared by one who writes to it."""
    pool = scheduler.pool
    users = Counter(block for seq in scheduler.running for block in seq.blocks)
    assert [users[block] for block in range(pool.num_blocks)] == pool.users
    assert pool.num_free + len(users) == pool.num_blocks
    assert all(not seq.blocks and seq.status is SequenceStatus.WAITING for seq in scheduler.waiting)
    assert len(scheduler.running) <= scheduler._config.max_num_seqs
    for ordered in (scheduler.waiting, scheduler.running):
        assert ordered == sorted(ordered, key=lambda seq: seq.order)
    step = scheduled.step
    assert step.num_tokens <= scheduler._config.max_num_batched_tokens
    size = scheduler._block_size
    for row, seq in zip(step.rows, scheduled.sequences, strict=True):
        assert seq in scheduler.running
        end = row.start + len(row.tokens)
        assert row.start == seq.num_computed
        assert all(pool.users[b] == 1 for b in row.blocks[row.start // size : -(-end // size)])
    if isinstance(scheduler.cache.states, StatePool):
        check_slots(scheduler, scheduled)
    targets = [target for _, target in step.copies]
    assert len(set(targets)) == len(targets)
    assert all(pool.users[target] == 1 for target in targets)


def check_slots(scheduler: Scheduler, scheduled: Scheduled) -> None:
    """No slot is leaked or lost; none is written that another sequence or a later prompt reads."""
    pool = scheduler.cache.states.pool
    users = Counter(slot for seq in scheduler.running for slot in seq.slots)
    assert [users[slot] for slot in range(pool.num_blocks)] == pool.users
    assert pool.num_free + len(users) == pool.num_blocks
    states = [row.state for row in scheduled.step.rows]
    written = [s.write for s in states] + [s.snapshot for s in states if s.snapshot >= 0]
    assert len(set(written)) == len(written)
    assert all(pool.users[slot] == 1 and not pool.is_registered(slot) for slot in written)
    read_again = {s.read for s in states if s.read not in (s.write, s.snapshot)} & set(written)
    assert all(s.read != s.write for s in states if s.snapshot >= 0)
    assert not read_again, "a slot is read by one row and written by another"


def check_all_returned(scheduler: Scheduler) -> None:
    scheduler.schedule()  # takes back the blocks of aborted sequences
    assert scheduler.pool.users == [0] * scheduler.pool.num_blocks
    assert scheduler.pool.num_free == scheduler.pool.num_blocks
    states = scheduler.cache.states
    if isinstance(states, StatePool):
        assert states.pool.num_free == states.pool.num_blocks
