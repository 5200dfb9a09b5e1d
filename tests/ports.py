"""Ports for the servers of tests, which no other test process is given at the same time."""

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path

_BLOCK = 200  # ports of one process; below 32768, where the system takes those of clients from
_UNSAFE = 10080  # browsers and Node.js refuse to connect to it
_LOCKS = Path(tempfile.gettempdir()) / f"mindspore-serving-ports-{os.getuid()}"


def _claimed() -> Iterator[int]:
    """The ports of the first block that no living process has locked, again and again."""
    _LOCKS.mkdir(exist_ok=True)
    for first in range(10000, 32000, _BLOCK):
        lock = (_LOCKS / str(first)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        with lock:  # as long as this generator lives
            yield from cycle(port for port in range(first, first + _BLOCK) if port != _UNSAFE)
    raise RuntimeError(f"every block of ports is locked in {_LOCKS}")


_ports = _claimed()


def free_port() -> int:
    """One that no socket has."""
    for port in _ports:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("the ports do not end")
