"""Process that runs a small random model on a device, compares it with numpy and measures it.

Not verified on hardware but for the CPU.
"""

import argparse
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.mindspore.model_check import (
    F32,
    MEASURED,
    PROMPT,
    TINY,
    ModelSizes,
    random_weights,
    reference_logits,
    write_model,
)
from mindspore_serving.llm.runtimes.mindspore.opening import open_runner
from mindspore_serving.llm.runtimes.mindspore.primitives.cases import TOLERANCES
from mindspore_serving.llm.runtimes.mindspore.primitives.messages import (
    ModelCompared,
    StreamsMeasured,
)
from mindspore_serving.llm.runtimes.mindspore.runner import TARGETS
from mindspore_serving.llm.step import Row, Runner, Step
from mindspore_serving.process.channel import BlockingChannel, connect
from mindspore_serving.process.entry import enter
from mindspore_serving.process.vocabulary import Failed, Ready

NUM_TOKENS = 16  # that the small model answers
STREAMS = (1, 8, 32)
STEPS = 16  # measured for each number of streams, after a few that are not
CACHE_BYTES = 512 << 20
_DEPTH = 3.0  # the error of a model of two layers against that of a primitive


def open_model(
    directory: Path, sizes: ModelSizes, device: str, composed: str
) -> tuple[Runner, dict[str, F32]]:
    """Write a random model and open it; return its weights, too.  Raises StartError."""
    weights = random_weights(sizes)
    write_model(directory, sizes, weights)
    config = EngineConfig(block_size=128, kv_cache_memory=CACHE_BYTES)
    if device == "ascend":  # on a CPU all operators are composed, and the option is refused
        config = replace(config, device="ascend", composed_primitives=composed)
    return open_runner(directory, config), weights


def compare_model(runner: Runner, weights: dict[str, F32], device: str) -> ModelCompared:
    """Answer a prompt greedily, and compare the logits of each token with numpy's."""
    tokens, rows = list(PROMPT), []
    start = 0
    for _ in range(NUM_TOKENS):
        logits = runner.run(Step((Row(tokens[start:], start, [0], 1),)))[0].copy()
        start = len(tokens)
        rows.append(logits)
        tokens.append(int(logits.argmax()))
    right = reference_logits(TINY, weights, tokens[:-1])[len(PROMPT) - 1 :]
    answered = np.array(rows)
    error = float(np.abs(answered - right).max() / np.abs(right).max())
    equal = int((answered.argmax(-1) == right.argmax(-1)).sum())
    tolerance = TOLERANCES[TARGETS[device].dtype] * _DEPTH
    return ModelCompared(error, tolerance, NUM_TOKENS, equal)


def measure(runner: Runner, streams: int, weight_bytes: int, bandwidth: float) -> StreamsMeasured:
    """Decode with `streams` sequences; `bandwidth` is in bytes per second."""
    lengths = [len(PROMPT)] * streams
    runner.run(Step(tuple(Row(PROMPT, 0, [stream], 1) for stream in range(streams))))

    def decode(count: int) -> float:
        begin = time.monotonic()
        for _ in range(count):
            rows = (Row([3], length, [stream], 1) for stream, length in enumerate(lengths))
            runner.run(Step(tuple(rows)))
            lengths[:] = [length + 1 for length in lengths]
        return time.monotonic() - begin

    decode(4)
    seconds = decode(STEPS)
    share = weight_bytes * STEPS / seconds / bandwidth
    return StreamsMeasured(streams, streams * STEPS / seconds, share)


def measure_bandwidth(num_bytes: int) -> float:
    """Return the bytes per second that adding a number to a float32 tensor reads and writes."""
    from mindspore_serving.llm.runtimes.mindir.library import mindspore

    tensor = mindspore.Tensor(np.ones(num_bytes // 4, np.float32)) + 1
    best = float("inf")
    for _ in range(5):
        begin = time.monotonic()
        result = tensor + 1
        result[0].asnumpy()  # waits for the device
        best = min(best, time.monotonic() - begin)
    return 2 * num_bytes / best


def run(channel: BlockingChannel[Any], device: str, composed: str) -> None:
    """Compare the small model, then measure: the small one again on a CPU.  Raises ServingError."""
    with TemporaryDirectory() as directory:
        runner, weights = open_model(Path(directory), TINY, device, composed)
    channel.send(compare_model(runner, weights, device))
    if device == "ascend":
        runner.close()
        with TemporaryDirectory() as directory:
            runner, weights = open_model(Path(directory), MEASURED, device, composed)
    embedding = weights["model.embed_tokens.weight"].size  # of which a step reads some rows
    element = 4 if device == "cpu" else 2
    weight_bytes = (sum(each.size for each in weights.values()) - embedding) * element
    bandwidth = measure_bandwidth(256 << 20 if device == "ascend" else 32 << 20)
    for streams in STREAMS:
        channel.send(measure(runner, streams, weight_bytes, bandwidth))
    runner.close()
    channel.send(Ready())


def main() -> None:
    """Check a model on the device that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--composed", required=True)
    arguments = enter(parser)
    channel: BlockingChannel[Any] = BlockingChannel(connect(arguments.channel), Failed)
    with closing(channel):
        try:
            run(channel, arguments.device, arguments.composed)
        except ServingError as error:
            channel.send(Failed(str(error)))
        except Exception as error:  # of CANN's libraries
            channel.send(Failed(error_text(error)))


if __name__ == "__main__":
    main()
