"""A servable whose workers hang, fork and die on request, and what they leave behind.

Everything is relative to the working directory, which the server in this process shares.
"""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.harness import Calls, eventually, is_alive, workers

SOURCE = """
import signal, subprocess, sys

while os.path.exists("hold"):  # a worker that loads
    time.sleep(0.005)

def log(word):
    with open("calls.txt", "a") as file:
        file.write(f"{word} {os.getpid()}\\n")

@method("pid")
def pid(x):
    return os.getpid()

@method("pid")
def share(x):
    time.sleep(0.002)
    return os.getpid()

@method("pid")
def wait(x):
    log("wait")
    end = time.monotonic() + 300
    while not os.path.exists("go") and time.monotonic() < end:
        time.sleep(0.005)
    return os.getpid()

@method("y")
def die(x):
    log("die")
    os._exit(int(x))

@method("pid")
def child(x):
    return subprocess.Popen(["sleep", "600"]).pid

@method("pid")
def fork(x):
    pid = os.fork()
    if not pid and x:
        os.setsid()
    while not pid:
        time.sleep(600)
    return pid
"""

# `hold()` blocks for ever, and no other thread of the process can run Python meanwhile.
HOLD = """
import ctypes

mutex = ctypes.create_string_buffer(64)
def hold():
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
"""


def logged(word: str) -> list[int]:
    """The workers in which something that logs `word` was begun."""
    lines = Path("calls.txt").read_text().splitlines() if Path("calls.txt").exists() else []
    return [int(line.split()[1]) for line in lines if line.split()[0] == word]


def go() -> None:
    Path("go").touch()


@contextmanager
def held() -> Iterator[None]:
    """No worker can load meanwhile."""
    Path("hold").touch()
    try:
        yield
    finally:
        Path("hold").unlink()


def ask_wait(calls: Calls, pool: ThreadPoolExecutor) -> tuple[Future[Any], int]:
    """A request that hangs in a worker: the future of its answer, and the worker."""
    before = len(logged("wait"))
    future = pool.submit(calls.client("toy", "wait").infer, {"x": 1})
    eventually(lambda: len(logged("wait")) > before)
    return future, logged("wait")[-1]


def new_worker(old: int) -> int:
    """The worker that replaced `old`, the only one."""
    return eventually(
        lambda: [pid for pid in workers(os.getpid()) if pid != old and is_alive(pid)]
    )[0]


def is_ready(calls: Calls) -> bool:
    return calls.http_call("GET", "/health")[0] == 200


def works(calls: Calls, method: str) -> dict[str, Any] | None:
    """The result of a call if it succeeds."""
    result = calls.client("toy", method).infer({"x": 1})
    return None if "error" in result else result[0]


def metrics(calls: Calls) -> bytes:
    return calls.http_call("GET", "/metrics")[1]
