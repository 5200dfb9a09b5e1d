"""The process of a rank that does not load, in the way that RANK_END says."""

import argparse
import os
import signal

from mindspore_serving.llm.parallel.messages import ToRank
from mindspore_serving.process.channel import BlockingChannel, connect
from mindspore_serving.process.vocabulary import Failed, Hello


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--channel", required=True)
    arguments, _ = parser.parse_known_args()
    channel = BlockingChannel[ToRank](connect(arguments.channel), ToRank)
    channel.receive_next()
    if os.environ["RANK_END"] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ["RANK_END"] == "leaves":
        os._exit(7)
    if os.environ["RANK_END"] == "other":
        channel.send(Hello("other", "/there"))
        os._exit(7)
    channel.send(Failed("no room for my part"))


if __name__ == "__main__":
    main()
