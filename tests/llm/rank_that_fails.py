"""The process of a rank that does not load, in the way that RANK_END says."""

import argparse
import os
import signal
import socket

from mindspore_serving.llm.parallel.messages import ToRank
from mindspore_serving.process.channel import BlockingChannel
from mindspore_serving.process.vocabulary import Failed, Hello


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", type=int, required=True)
    arguments, _ = parser.parse_known_args()
    control = BlockingChannel[ToRank](socket.socket(fileno=arguments.control), ToRank)
    control.receive_one()
    if os.environ["RANK_END"] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ["RANK_END"] == "leaves":
        os._exit(7)
    if os.environ["RANK_END"] == "other":
        control.send(Hello("other", "/there"))
        os._exit(7)
    control.send(Failed("no room for my part"))


if __name__ == "__main__":
    main()
