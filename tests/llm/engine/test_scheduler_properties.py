"""Any sequence of operations, small caches: no block is lost or shared wrongly, every answer is
what the arithmetic says."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mindspore_serving.core.llm_messages import BACKGROUND
from mindspore_serving.llm.engine.sequence import SequenceStatus
from tests.llm.driving import advance, check_all_returned, make, run_all, sequence
from tests.llm.toy_answers import continuation

VOCAB = 128
NUM_BLOCKS, BLOCK_SIZE = 7, 4
CAPACITY = NUM_BLOCKS * BLOCK_SIZE
# Few tokens, so that prompts often begin alike.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=CAPACITY - 1)


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, aborts, forks and steps in any order; `driving.check` looks after every decision."""

    @initialize(
        budget=st.integers(4, 12),
        caching=st.booleans(),
        max_num_seqs=st.integers(1, 4),
        num_slots=st.sampled_from([0, 3, 8, 17]),
    )
    def start(self, budget, caching, max_num_seqs, num_slots):
        self.scheduler, self.runner = make(
            NUM_BLOCKS,
            BLOCK_SIZE,
            num_slots=num_slots,
            max_num_batched_tokens=budget,
            enable_prefix_caching=caching,
            max_num_seqs=max_num_seqs,
        )
        self.known = []  # sequence, tokens it began with

    @rule(
        prompt=PROMPTS,
        more=st.integers(1, 12),
        priority=st.sampled_from([0, 1, BACKGROUND]),
        salt=st.sampled_from(["", "tenant"]),
        adapter=st.integers(0, 1),
        is_scored=st.booleans(),
    )
    def add(self, *, prompt, more, priority, salt, adapter, is_scored):
        seq = sequence(
            prompt,
            max_len=min(CAPACITY, len(prompt) + more),
            arrival=len(self.known),
            priority=priority,
            salt=salt,
            adapter=adapter,
            logits_from=0 if is_scored else -1,
        )
        self.known.append((seq, len(prompt)))
        self.scheduler.add(seq)

    @precondition(lambda self: self.unfinished())
    @rule(which=st.integers(0, 100))
    def abort(self, which):
        unfinished = self.unfinished()
        self.scheduler.abort(unfinished[which % len(unfinished)][0])

    @precondition(lambda self: self.forkable())
    @rule(which=st.integers(0, 100), token=st.integers(0, VOCAB - 1), index=st.integers(1, 3))
    def fork(self, which, token, index):
        forkable = self.forkable()
        parent = forkable[which % len(forkable)]
        child = parent.fork(1000 * index + len(self.known), token)
        self.known.append((child, len(child.tokens)))
        self.scheduler.fork(parent, child)

    @precondition(lambda self: self.unfinished())
    @rule(which=st.integers(0, 100), right=st.integers(0, 4), wrong=st.integers(0, 2))
    def guess(self, which, right, wrong):
        unfinished = self.unfinished()
        seq = unfinished[which % len(unfinished)][0]
        draft = continuation(seq.tokens, right, VOCAB, seq.adapter)
        seq.draft = draft + [0] * wrong

    @rule(count=st.integers(1, 5))
    def step(self, count):
        for _ in range(count):
            has_work = self.scheduler.has_work
            scheduled = advance(self.scheduler, self.runner)
            assert bool(scheduled.step.rows) == has_work

    @invariant()
    def finished_answers_are_right(self):
        for seq, length in getattr(self, "known", []):
            if seq.status is SequenceStatus.FINISHED:
                count = len(seq.tokens) - length
                assert seq.tokens[length:] == expected(seq, length, count)
                assert seq.blocks == []

    def teardown(self):
        if hasattr(self, "scheduler"):
            run_all(self.scheduler, self.runner)
            self.finished_answers_are_right()
            check_all_returned(self.scheduler)

    def unfinished(self):
        live = (SequenceStatus.WAITING, SequenceStatus.RUNNING)
        return [(seq, length) for seq, length in self.known if seq.status in live]

    def forkable(self):
        """As the engine forks: when a prompt has just been read."""
        return [
            seq
            for seq, length in self.known
            if seq.status is SequenceStatus.RUNNING
            and seq.num_computed == length
            and len(seq.tokens) == length + 1
            and len(seq.blocks) == -(-length // BLOCK_SIZE)
        ]


def expected(seq, length, count):
    return continuation(seq.tokens[:length], count, VOCAB, seq.adapter)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=150,
    stateful_step_count=30,
)


@pytest.mark.parametrize("num_slots", [0, 17])
@pytest.mark.parametrize("caching", [False, True])
def test_a_crowd_with_a_tiny_cache_is_answered_right(caching, num_slots):
    rng = random.Random(7)
    scheduler, runner = make(
        9, 4, num_slots=num_slots, max_num_batched_tokens=8, enable_prefix_caching=caching
    )
    crowd = []
    for arrival in range(150):
        prompt = [rng.randrange(2) for _ in range(rng.randint(1, 30))]
        max_len = min(36, len(prompt) + rng.randint(1, 12))
        seq = sequence(prompt, max_len, arrival, priority=rng.randrange(2))
        crowd.append((seq, len(prompt)))
        scheduler.add(seq)
    run_all(scheduler, runner)
    for seq, length in crowd:
        assert len(seq.tokens) == seq.max_len
        assert seq.tokens[length:] == expected(seq, length, seq.max_len - length)
    assert scheduler.num_preemptions > 20  # it was tight
    assert (scheduler.cache.num_hits > 100) == caching
    check_all_returned(scheduler)
