"""`python -m tests.isolation.roles`: a fork server whose children do what a job says."""

import os
import socket
import time
from collections.abc import Callable, Mapping

from mindspore_serving.isolation.fork_server import Role, answer_jobs, run

MODULE = "tests.isolation.roles"
kept: list[bytes] = []


def burn(seconds: bytes) -> None:
    """Take that much time of a processor."""
    while time.process_time() < float(seconds):
        pass


ORDERS: dict[bytes, Callable[[bytes], object]] = {
    b"sleep": lambda seconds: time.sleep(float(seconds)),
    b"burn": burn,
    b"take": lambda size: bytearray(int(size)),
    b"keep": lambda size: kept.append(b"x" * int(size)),
    b"die": lambda number: os.kill(os.getpid(), int(number)),
}


def load(setup: bytes) -> Mapping[str, Role]:
    time.sleep(600 if setup == b"slow" else 0)
    if setup == b"broken":
        raise ValueError("the setup is broken")

    def answer(job: bytes) -> bytes:
        order, _, rest = job.partition(b" ")
        if order in ORDERS:
            ORDERS[order](rest)
        return b"%b %d" % (setup, os.getpid()) if order == b"who" else rest

    def work(stream: socket.socket) -> None:
        answer_jobs(stream, answer)

    def babble(stream: socket.socket) -> None:
        stream.recv(1)
        stream.sendall(b"\xff" * 5)
        while stream.recv(1):
            pass

    return {"work": work, "babble": babble}


if __name__ == "__main__":
    run(load)
