"""A process that msrun has started beside rank 0: another rank, or the scheduler of MindSpore.

It ends when the server of rank 0 does, whatever it computes.
"""

import os
import select
import signal
import socket
import sys
import threading
from contextlib import closing
from types import FrameType

from mindspore_serving.llm.parallel.links import Links
from mindspore_serving.llm.parallel.msrun import SCHEDULER, MsrunRole, RankListener
from mindspore_serving.llm.runtimes import rank
from mindspore_serving.process.child import Child, Program

SCHEDULER_MODULE = "mindspore_serving.llm.runtimes.mindspore.scheduler_process"


def run(role: MsrunRole) -> int:
    """Run the process until rank 0 ends; return its exit status.

    Raises StartError for a rank that runs already, and if rank 0 does not connect.
    """
    with closing(RankListener(role)) as listener:
        if role.rank == SCHEDULER:
            with closing(Child(Program(SCHEDULER_MODULE, stdout=2))), listener.accept() as server:
                _wait_for_end(server)
            return 0
        server = listener.accept()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _end)
        try:
            stream = listener.accept(server)
            memory, peers = listener.receive(stream, role.rank)
        except EOFError:  # rank 0 could not open its part
            return 0
    links = Links(role.rank, peers, memory)
    os.close(memory)
    threading.Thread(target=_end_with, args=(server,), name="msrun", daemon=True).start()
    status = rank.compute(stream, links)
    _leave(status)
    return status


def _wait_for_end(server: socket.socket) -> None:
    select.select([server], [], [])  # rank 0 sends nothing


def _end_with(server: socket.socket) -> None:
    _wait_for_end(server)
    _leave(0)


def _end(number: int, frame: FrameType | None) -> None:
    _leave(0)


def _leave(status: int) -> None:
    """End now: MindSpore's libraries would wait for the other ranks."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)
