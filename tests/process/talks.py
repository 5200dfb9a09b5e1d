"""`python -m tests.process.talks`: says who it is, and leaves when nobody listens any more."""

import argparse
from contextlib import suppress

from mindspore_serving.process.channel import BlockingChannel, connect
from mindspore_serving.process.entry import enter
from mindspore_serving.process.vocabulary import Exit, Failed


def main() -> None:
    channel = BlockingChannel[Exit](connect(enter(argparse.ArgumentParser()).channel), Exit)
    channel.send(Failed("the child"))
    with suppress(EOFError):
        channel.receive(wait=True)


if __name__ == "__main__":
    main()
