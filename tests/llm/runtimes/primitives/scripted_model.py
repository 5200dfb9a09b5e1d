"""A check of a model without a device: it differs where an operator had to be composed."""

import argparse
from contextlib import closing

from mindspore_serving.llm.runtimes.mindspore.primitives.messages import (
    ModelCompared,
    StreamsMeasured,
)
from mindspore_serving.process.channel import BlockingChannel, connect
from mindspore_serving.process.entry import enter
from mindspore_serving.process.vocabulary import Failed, Ready


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--device", "--composed"):
        parser.add_argument(name)
    arguments = enter(parser)
    with closing(BlockingChannel(connect(arguments.channel), Failed)) as channel:
        is_right = arguments.composed == "none"
        error, equal = (0.001, 16) if is_right else (0.5, 9)
        channel.send(ModelCompared(error, 0.06, 16, equal))
        channel.send(StreamsMeasured(8, 100.0, 0.5))
        channel.send(Ready())


if __name__ == "__main__":
    main()
