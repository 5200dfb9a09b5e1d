"""Thousands of requests of every kind against a small cache: each is answered as the arithmetic
says, each ends, and every block comes back."""

import random
from dataclasses import dataclass

import pytest

from mindspore_serving.core.sampling_params import FinishReason, SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import PROMPT, Engine
from tests.llm.toy import OverlappingToy, ToyRunner

VOCAB = 128
EOS = 17
CONTEXT = 48
PRIME = 2**31 - 1


@dataclass
class Asked:
    prompt: list[int]
    params: SamplingParams
    adapter: int
    is_aborted: bool = False


def invent(rng) -> Asked:
    length = rng.choice([1, 3, 8, 16, rng.randint(1, 40)])
    start = rng.choice([[], [1, 2, 3, 4] * 2, [1, 2, 3, 4] * 4])  # many prompts begin alike
    prompt = (start + [rng.randrange(VOCAB) for _ in range(length)])[: CONTEXT - 1]
    max_tokens = rng.choice([None, 1, 2, rng.randint(3, 24)])
    params = SamplingParams(
        temperature=0.0,
        max_tokens=max_tokens,
        min_tokens=rng.choice([0, 0, max_tokens or 3]),
        n=rng.choice([1] * 8 + [2, 3]),
        stop_token_ids=rng.sample(range(VOCAB), rng.choice([0, 0, 4])),
        ignore_eos=rng.random() < 0.2,
        prompt_logprobs=rng.choice([None] * 9 + [0]),
        logprobs=rng.choice([None] * 9 + [1]),
    )
    return Asked(prompt, params, adapter=rng.choice([0] * 5 + [1]))


def answer(asked: Asked) -> tuple[list[int], FinishReason]:
    """By the formula of the toy, token after token, without any of the engine's parts."""
    params = asked.params
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
    total, factor = 0, 1
    given: list[int] = []
    for token in asked.prompt:
        total = (total + (token + 1 + asked.adapter * 1_000_003) * factor) % PRIME
        factor = factor * 31 % PRIME
    while True:
        token = total % VOCAB
        while len(given) < params.min_tokens and token in ends:
            token = (token + 1) % VOCAB  # the next likeliest
        given.append(token)
        if token in ends:
            return given, FinishReason.STOP
        if len(given) == params.max_tokens or len(asked.prompt) + len(given) == CONTEXT:
            return given, FinishReason.LENGTH
        total = (total + (token + 1 + asked.adapter * 1_000_003) * factor) % PRIME
        factor = factor * 31 % PRIME


class Crowd:
    """Adds, aborts and steps at random, and keeps what was said."""

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self.engine, self.rng = engine, rng
        self.asked: dict[str, Asked] = {}
        self.open: dict[str, set[int]] = {}
        self.said: dict[tuple[str, int], list[int]] = {}
        self.ends: dict[tuple[str, int], FinishReason] = {}

    def add(self) -> None:
        name, asked = str(len(self.asked)), invent(self.rng)
        self.asked[name] = asked
        self.open[name] = set(range(asked.params.n))
        self.engine.add(
            name,
            asked.prompt,
            asked.params,
            priority=self.rng.randrange(3),
            cache_salt=self.rng.choice(["", "tenant"]),
            adapter=asked.adapter,
        )

    def abort(self) -> None:
        if self.open:
            name = self.rng.choice(list(self.open))
            if self.engine.abort(name):
                self.asked[name].is_aborted = True

    def step(self) -> None:
        for name, generated in self.engine.step():
            key = (name, generated.index)
            assert key not in self.ends
            self.said.setdefault(key, []).extend(generated.token_ids)
            if generated.finish_reason is not None:
                self.ends[key] = generated.finish_reason
                self.open[name].remove(generated.index)
                if not self.open[name]:
                    del self.open[name]

    def give_back(self) -> None:
        """Has the cache return memory, and lets it take a random number of bytes from now on."""
        memory = self.engine.memory
        memory.set_target(self.rng.randrange(memory.limit + 1))
        while memory.release(self.rng.choice([1, 200])):
            pass

    def check(self) -> None:
        assert not self.open
        for name, asked in self.asked.items():
            expected, reason = answer(asked)
            for index in range(asked.params.n):
                given, end = self.said[name, index], self.ends[name, index]
                assert given == expected[: len(given)]
                assert (given, end) == (expected, reason) or (
                    asked.is_aborted and end is FinishReason.ABORT
                )
            if asked.params.prompt_logprobs is not None and not asked.is_aborted:
                assert self.said[name, PROMPT] == asked.prompt


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runner", "num_speculative_tokens"),
    [
        pytest.param(ToyRunner, 0, marks=pytest.mark.long),
        (ToyRunner, 3),
        (OverlappingToy, 0),
        pytest.param(OverlappingToy, 3, marks=pytest.mark.long),
    ],
)
def test_thousands_of_requests_are_all_answered_right(runner, num_speculative_tokens):
    """Also with several steps in flight."""
    count = 2_500 if num_speculative_tokens or runner is OverlappingToy else 10_000
    config = EngineConfig(
        max_model_len=CONTEXT,
        max_num_seqs=24,
        max_num_batched_tokens=64,
        num_speculative_tokens=num_speculative_tokens,
        adaptive_speculation=False,
        min_ngram=1,
        pipeline_parallel=2,
        pipeline_groups=3,
    )
    engine = Engine(runner(48, 4, VOCAB), None, config, [EOS])
    rng = random.Random(5)
    crowd = Crowd(engine, rng)
    while len(crowd.asked) < count:
        for _ in range(rng.choice([0, 0, 1, 8]) if len(crowd.open) < 60 else 0):
            crowd.add()
        if rng.random() < 0.1:
            crowd.abort()
        if rng.random() < 0.01:
            crowd.give_back()
        crowd.step()
    while engine.has_work:
        crowd.step()
    crowd.check()
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_blocks
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    # It was what it is meant to be: tight, shared, interrupted.
    assert stats.num_preemptions > count // 50
    assert stats.num_cache_hits > count // 2
    assert stats.num_cache_bytes_released > count // 100 * stats.num_cache_bytes_limit // 48
    assert (stats.num_draft_tokens > count // 10) == (num_speculative_tokens > 0)
    assert getattr(engine.runner, "max_begun", 3) == 3
    ends = list(crowd.ends.values())
    for reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT):
        assert ends.count(reason) > count // 100
