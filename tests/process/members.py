"""What the members of `test_group` run: `python -m tests.process.members NAME`."""

import argparse
import sys

from mindspore_serving.process import vocabulary
from mindspore_serving.process.channel import BlockingChannel, connect
from mindspore_serving.process.entry import enter
from mindspore_serving.process.vocabulary import Exit, Failed, Hello, Ready, hello

LOST = 5  # the exit status of a member that ends because another one has


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    arguments = enter(parser)
    channel = BlockingChannel[Exit](connect(arguments.channel), Exit)
    if arguments.name == "other_version":
        channel.send(Hello("another", "/elsewhere"))
        channel.receive_next()
    channel.send(hello(vocabulary))
    if arguments.name == "exits":
        return 3
    if arguments.name == "fails":
        channel.send(Failed("no such file"))
        return 1
    channel.send(Ready())
    if arguments.name == "was_stopped":
        return 0
    channel.receive_next()  # for ever, but where the test sends one
    return LOST


if __name__ == "__main__":
    sys.exit(main())
