"""Drives a runner greedily, step by step, with arrivals and chunks of the test's choice."""

from collections.abc import Sequence

import numpy as np

from mindspore_serving.llm.step import Row, Runner, StateSlots, Step


def greedy(
    runner: Runner,
    prompts: Sequence[Sequence[int]],
    count: int,
    *,
    tables: Sequence[Sequence[int]] | None = None,
    chunk: int = 10**6,
    arrivals: Sequence[int] | None = None,
    computed: Sequence[int] | None = None,
) -> list[tuple[int, ...]]:
    """The `count` most likely next tokens of each prompt.

    A step computes at most `chunk` tokens of a sequence.  `arrivals` are the steps at which they
    come, `computed` how many tokens of each are in the cache already.
    """
    tokens = [list(prompt) for prompt in prompts]
    done = list(computed or [0] * len(prompts))
    tables = tables or shuffled_tables(runner, len(prompts))
    arrivals = arrivals or [0] * len(prompts)
    step = 0
    while any(len(t) < len(p) + count for t, p in zip(tokens, prompts, strict=True)):
        ready = [i for i in range(len(prompts))
                 if step >= arrivals[i] and len(tokens[i]) < len(prompts[i]) + count]  # fmt: skip
        step += 1
        if not ready:
            continue
        ends = {i: min(len(tokens[i]), done[i] + chunk) for i in ready}
        rows = [
            Row(
                tokens[i][done[i] : ends[i]],
                done[i],
                tables[i],
                int(ends[i] == len(tokens[i])),
                state=slots_of(runner, i, done[i]),
            )
            for i in ready
        ]
        logits = iter(np.array(runner.run(Step(tuple(rows)))))
        for i in ready:
            done[i] = ends[i]
            if done[i] == len(tokens[i]):
                tokens[i].append(int(next(logits).argmax()))
    return [tuple(t[len(p) :]) for t, p in zip(tokens, prompts, strict=True)]


def slots_of(runner: Runner, index: int, start: int) -> StateSlots | None:
    """A slot for the `index`-th sequence, in a model that has states."""
    return StateSlots(index if start else -1, index) if runner.num_slots else None


def shuffled_tables(runner: Runner, count: int, *, seed: int = 0) -> list[list[int]]:
    """Blocks for `count` sequences, out of order, all of the cache."""
    blocks = np.random.default_rng(seed).permutation(runner.num_blocks)
    each = runner.num_blocks // count
    return [blocks[i * each : (i + 1) * each].tolist() for i in range(count)]


def all_logits(runner: Runner, tokens: Sequence[int], *, kept: int = 0) -> np.ndarray:
    """Of every position, in one step.  The state after `kept` tokens is left in slot 0."""
    table = shuffled_tables(runner, 1)[0]
    state = StateSlots(-1, 1, 0, kept) if kept and runner.num_slots else None
    return np.array(runner.run(Step((Row(tokens, 0, table, len(tokens), state=state),))))


def relative_error(got: np.ndarray, wanted: np.ndarray) -> float:
    """Root mean square of the difference over that of what is wanted."""
    return float(np.sqrt(((got - wanted) ** 2).mean() / (wanted**2).mean()))
