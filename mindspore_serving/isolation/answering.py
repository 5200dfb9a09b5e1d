"""The child's side of a pool: jobs in, answers out, one after another."""

import socket
from collections.abc import Callable

from mindspore_serving.isolation.fork_server import memory
from mindspore_serving.process.frames import receive, send

# The first byte of every answer.
STAYING, LEAVING = b"\0", b"\1"
MOST_GROWTH = 64 << 20  # bytes that finished jobs may leave behind


def answer_jobs(stream: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    """Send `answer` of every frame, until the other end is closed.  A process that has grown leaves
    after its answer: what a job may take is counted from an empty process."""
    most = memory() + MOST_GROWTH
    while (job := receive(stream)) is not None:
        found = answer(job)
        is_full = memory() > most
        send(stream, (LEAVING if is_full else STAYING) + found)
        if is_full:
            return
