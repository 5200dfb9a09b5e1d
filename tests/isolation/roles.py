"""`python -m tests.isolation.roles`: a fork server whose children do what a job says."""

import os
import socket
import time
from collections.abc import Mapping

from mindspore_serving.isolation.fork_server import Role, answer_jobs, run

MODULE = "tests.isolation.roles"
kept: list[bytes] = []


def burn(seconds: float) -> None:
    """Take that much time of a processor."""
    while time.process_time() < seconds:
        pass


def load(setup: bytes) -> Mapping[str, Role]:
    time.sleep(600 if setup == b"slow" else 0)
    if setup == b"broken":
        raise ValueError("the setup is broken")

    def answer(job: bytes) -> bytes:
        what, _, rest = job.partition(b" ")
        if what == b"sleep":
            time.sleep(float(rest))
        elif what == b"burn":
            burn(float(rest))
        elif what == b"take":
            bytearray(int(rest))
        elif what == b"keep":
            kept.append(b"x" * int(rest))
        elif what == b"die":
            os.kill(os.getpid(), int(rest))
        return b"%b %d" % (setup, os.getpid()) if what == b"who" else rest

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
