"""What a step costs by weights, options and context: processor time, of compiled models in turns.

    python -m benchmarks.llm_steps DIRECTORY[@option=value,...] ... [--streams 1,4,16]
        [--contexts 128] [--prompt 256] [--rounds 8]

Processor time of all threads, in milliseconds of a step, as it depends less on what else the
machine does; in brackets the median of the ratios to the first one, and where the middle 80 % of
them are.  Of the options, `runtime` is "openvino" if it is left out.  The cache has random
contents, but for the mindspore runtime.  Directories must allow as many positions as the contexts
have.
"""

import argparse
import time
from collections import defaultdict
from typing import Any

import numpy as np

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, StateSlots, Step

REPEATS = 3


def opened(text: str, streams: int, context: int, prompt: int) -> Any:
    """A runner with a cache for `streams` sequences of `context` tokens, filled."""
    directory, _, options = text.partition("@")
    pairs = (one.split("=") for one in options.split(",") if one)
    given: dict[str, Any] = {k: int(v) if v.isdecimal() else v for k, v in pairs}
    runtime = given.pop("runtime", "openvino")
    runner = open_runner(
        directory,
        runtime,
        EngineConfig(
            max_num_seqs=streams, max_num_batched_tokens=max(prompt, streams),
            max_model_len=max(context, prompt) + 32, **given,
        ),
    )  # fmt: skip
    if not hasattr(runner, "write_block"):
        return runner  # its cache has zeros
    random = np.random.default_rng(0)
    for block in range(min(runner.num_blocks, streams * (context // runner.block_size + 1))):
        # Small numbers in every type: the high byte of float16 and bfloat16 is under 64.
        runner.write_block(block, memoryview(random.integers(0, 60, runner.block_bytes, np.uint8)))
    return runner


def decoding(runner: Any, streams: int, context: int) -> Step:
    count = context // runner.block_size + 1
    return Step(
        tuple(
            Row(
                [5 + i], context - 1, range(i * count, (i + 1) * count), 1,
                state=StateSlots(i, i) if runner.num_slots else None,
            )
            for i in range(streams)
        )
    )  # fmt: skip


def milliseconds(runner: Any, step: Step) -> float:
    """Of processor time, after one step whose time is not counted."""
    runner.run(step)
    began = time.process_time()
    for _ in range(REPEATS):
        runner.run(step)
    return (time.process_time() - began) / REPEATS * 1e3


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="DIRECTORY[@OPTIONS]")
    parser.add_argument("--streams", type=numbers, default=[1, 4, 16])
    parser.add_argument("--contexts", type=numbers, default=[128])
    parser.add_argument(
        "--prompt", type=int, default=256, help="tokens of a prompt's step; 0: none"
    )
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    most = max(given.streams), max(given.contexts)
    runners = {model: opened(model, *most, given.prompt) for model in given.models}
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(given.rounds):
        for model, runner in runners.items():
            for context in given.contexts:
                for streams in given.streams:
                    step = decoding(runner, streams, context)
                    name = f"{streams} at {context}"
                    found[name][model].append(milliseconds(runner, step))
            if given.prompt:
                blocks = range(-(-given.prompt // runner.block_size))
                step = Step((Row([5] * given.prompt, 0, blocks, 1),))
                found[f"prompt of {given.prompt}"][model].append(milliseconds(runner, step))
    for name, by_model in found.items():
        first = np.array(by_model[given.models[0]])
        for model, times in by_model.items():
            ratios = np.array(times) / first
            low, high = np.percentile(ratios, [10, 90])
            best = f"{min(times):.1f} ms ({np.median(ratios):.2f}, {low:.2f} to {high:.2f})"
            print(f"{name}, {model}: {best}", flush=True)


if __name__ == "__main__":
    main()
