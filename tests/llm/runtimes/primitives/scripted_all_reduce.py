"""A rank of an all-reduce without a device: with three ranks its sums are wrong."""

import argparse
import os
from contextlib import closing

from mindspore_serving.llm.runtimes.mindspore.primitives.messages import AllReduceMeasured
from mindspore_serving.process.channel import BlockingChannel, connect
from mindspore_serving.process.entry import enter
from mindspore_serving.process.vocabulary import Failed, Ready


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--device", "--rank", "--size"):
        parser.add_argument(name)
    arguments = enter(parser)
    with closing(BlockingChannel(connect(arguments.channel), Failed)) as channel:
        if os.environ["MS_WORKER_NUM"] != arguments.size or os.environ["DEVICE_ID"] != "0":
            channel.send(Failed("variables of another rank"))
        channel.send(AllReduceMeasured(1 << 20, 0.002, arguments.size != "3"))
        channel.send(Ready())


if __name__ == "__main__":
    main()
