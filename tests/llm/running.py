"""Drives a runner by hand: a test says which tokens go into a step, and this keeps the books.

The blocks of the texts are scattered over the cache, so that a wrong table is noticed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindspore_serving.llm import LLM, FinishReason, SamplingParams
from mindspore_serving.llm.step import Row, Runner, Step
from tests.llm import checkpoints


@dataclass
class Text:
    """A sequence: its tokens, its blocks, how many tokens are in the cache."""

    tokens: list[int]
    blocks: list[int]
    num_computed: int = 0
    num_prompt: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt = len(self.tokens)

    @property
    def answer(self) -> tuple[int, ...]:
        return tuple(self.tokens[self.num_prompt :])

    def row(self, chunk: int) -> Row:
        """Its next tokens, `chunk` at most; logits are wanted if they are the last."""
        count = min(chunk, len(self.tokens) - self.num_computed)
        end = self.num_computed + count
        new = self.tokens[self.num_computed : end]
        return Row(new, self.num_computed, self.blocks, int(end == len(self.tokens)))


def texts(runner: Runner, prompts: Iterable[Sequence[int]], count: int) -> list[Text]:
    """One per prompt, with room for `count` more tokens."""
    free = np.random.default_rng(7).permutation(runner.num_blocks).tolist()
    result = []
    for prompt in prompts:
        needed = -(-(len(prompt) + count) // runner.block_size)
        result.append(Text(list(prompt), [free.pop() for _ in range(needed)]))
    return result


def advance(runner: Runner, batch: Sequence[Text], chunk: int = 10**9) -> np.ndarray:
    """One step of all of `batch`: a text whose last token was computed gets its likeliest next."""
    rows = [text.row(chunk) for text in batch]
    logits = runner.run(Step(tuple(rows)))
    best = iter(logits.argmax(-1).tolist())
    for text, row in zip(batch, rows, strict=True):
        text.num_computed += len(row.tokens)
        if row.num_logits:
            text.tokens.append(next(best))
    return logits


def generate(
    runner: Runner, batch: Sequence[Text], count: int, *, chunk: int = 10**9
) -> list[tuple[int, ...]]:
    """Step until each has answered `count` tokens: those that wait for others are left out."""
    while active := [text for text in batch if len(text.answer) < count]:
        advance(runner, active, chunk)
    return [text.answer for text in batch]


def generate_staggered(
    runner: Runner, batch: Sequence[Text], count: int, *, chunk: int
) -> list[tuple[int, ...]]:
    """As `generate`, but every text starts two steps after the one before, and prompts come in
    pieces: steps mix texts that decode with pieces of prompts."""
    step = 0
    while any(len(text.answer) < count for text in batch):
        started = batch[: step // 2 + 1]
        advance(runner, [text for text in started if len(text.answer) < count], chunk)
        step += 1
    return [text.answer for text in batch]


def check(path: Path, prompts: list[tuple[int, ...]], answers: list[tuple[int, ...]]) -> None:
    """Each answer of the checkpoint at `path` has, after its prompt, the likeliest tokens."""
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer == checkpoints.likeliest(path, prompt, answer)


LIBRARIES = {"mindir": "mindspore", "native": "llvmlite"}  # of runtimes with other names


def require(runtime: str) -> None:
    """Skips where the library of `runtime` is missing."""
    pytest.importorskip(LIBRARIES.get(runtime, runtime))


def check_crowd(
    source: Path,
    runtime: str,
    *,
    exported: Path | None = None,
    count: int = 32,
    layers: int = checkpoints.LAYERS,
    **options: Any,
) -> None:
    """The whole engine, with a cache too small for the crowd: prefixes shared, texts preempted.

    Each of two answers of `count` tokens to each prompt is what the reference says of it alone.
    """
    common = checkpoints.prompts(1, seed=1, longest=60)[0]
    tails = checkpoints.prompts(8, seed=2, longest=40)
    prompts = [[*common, *tail] if place % 3 else list(tail) for place, tail in enumerate(tails)]
    options = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 48,
        "max_model_len": 160,
        "block_size": 16,
        "kv_cache_memory": 256 * layers * 2 * 2 * 16 * 4,  # 256 tokens, 2 heads of 16 in a layer
        "adaptive_speculation": False,
        "min_ngram": 1,
        **options,
    }
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, n=2)
    with LLM(exported or source, runtime, **options) as llm:
        answers = llm.generate(prompts, params)
        stats = llm.stats()
    for prompt, answer in zip(prompts, answers, strict=True):
        for output in answer.outputs:
            assert output.finish_reason is FinishReason.LENGTH
            assert len(output.token_ids) == count
            assert output.token_ids == checkpoints.likeliest(source, prompt, output.token_ids)
    assert stats.num_preemptions > 0
    assert stats.num_cache_hits > 0
    assert (stats.num_draft_tokens > 0) == (options.get("num_speculative_tokens", 0) > 0)
