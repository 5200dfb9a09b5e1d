"""Process of one rank that checks and measures all-reduces of growing size; rank 0 reports.

Not verified on hardware but for the CPU.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np

from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.runtimes.mindir.library import ASCEND, CPU, mindspore, use_device
from mindspore_serving.llm.runtimes.mindspore import cluster
from mindspore_serving.llm.runtimes.mindspore.primitives.messages import AllReduceMeasured
from mindspore_serving.llm.runtimes.mindspore.primitives.table import make
from mindspore_serving.process.channel import BlockingChannel, connect
from mindspore_serving.process.entry import enter
from mindspore_serving.process.vocabulary import Failed, Ready

SIZES = tuple(1 << exponent for exponent in (12, 14, 16, 18, 20, 22, 24))  # bytes of each rank
REPETITIONS = 20


class AllReduceCell(mindspore.nn.Cell):  # type: ignore[misc]
    """A graph of one all-reduce."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.sum = make("all_reduce", "ascend", group=group)
        self.set_inputs(mindspore.Tensor(shape=[None, None], dtype=mindspore.float32))

    def construct(self, x: Any) -> Any:
        return self.sum(x)


def measure(rank: int, size: int, *, is_on_cpu: bool) -> Iterator[AllReduceMeasured]:
    """Iterate over the measurements of rank `rank` of `size`."""
    cell = AllReduceCell(cluster.world_group(is_on_cpu=is_on_cpu))
    for num_bytes in SIZES:
        x = mindspore.Tensor(np.full((1, num_bytes // 4), rank + 1, np.float32))
        total = cell(x).asnumpy()
        begin = time.monotonic()
        for _ in range(REPETITIONS):
            result = cell(x)
        result.asnumpy()  # waits for the device
        seconds = (time.monotonic() - begin) / REPETITIONS
        yield AllReduceMeasured(num_bytes, seconds, bool((total == size * (size + 1) / 2).all()))


def run(channel: BlockingChannel[Any], device: str, rank: int, size: int) -> None:
    """Connect and measure.  Raises ServingError."""
    use_device(CPU if device == "cpu" else ASCEND, rank)
    cluster.initialise()
    for measured in measure(rank, size, is_on_cpu=device == "cpu"):
        if rank == 0:
            channel.send(measured)
    channel.send(Ready())


def main() -> None:
    """Measure the rank that the command line names; wait until the parent has all results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    for name in ("--rank", "--size"):
        parser.add_argument(name, type=int, required=True)
    arguments = enter(parser)
    channel: BlockingChannel[Any] = BlockingChannel(connect(arguments.channel), Failed)
    with closing(channel):
        try:
            run(channel, arguments.device, arguments.rank, arguments.size)
        except ServingError as error:
            channel.send(Failed(str(error)))
        except Exception as error:  # of CANN's libraries
            channel.send(Failed(error_text(error)))


if __name__ == "__main__":
    main()
