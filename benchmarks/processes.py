"""Servers under test: an environment for each peer, a process started and ended by its id.

Knows nothing of what a server serves; `ready` says when it does.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ENVIRONMENTS = HERE / ".envs"
LOGS = HERE / ".cache" / "logs"
START_LIMIT = 60.0  # seconds from start to the first right answer
STOP_LIMIT = 10.0  # seconds from SIGTERM to SIGKILL


def free_ports(count: int) -> list[int]:
    """`count` different ports that nothing listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def python_with(environment: str, requirements: Sequence[str], unwanted: Sequence[str] = ()) -> str:
    """The interpreter of benchmarks/.envs/`environment`, made now unless it holds this already.

    `unwanted` are packages that came with the others and are taken away again.
    """
    folder = ENVIRONMENTS / environment
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    wanted = "\n".join(requirements) + "\n"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"making the environment of {environment}: {' '.join(requirements)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, *requirements], check=True)
        if unwanted:
            subprocess.run([*pip[:-2], "uninstall", "--quiet", "--yes", *unwanted], check=True)
        stamp.write_text(wanted)
    return str(python)


def end_on_sigterm() -> None:
    """Leave as at Ctrl-C, so that no process is left behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


@contextmanager
def running(
    name: str, command: Sequence[str], ready: Callable[[], bool], limit: float = START_LIMIT
) -> Iterator[float]:
    """Run `command` until the block ends; gives the seconds from start until `ready()` was true.

    `ready` is asked again and again; an OSError from it means "not yet".  SIGTERM ends the
    block and the process, whose output goes to benchmarks/.cache/logs/NAME.log.  Raises
    RuntimeError if it exits or is not ready in `limit` seconds.
    """
    end_on_sigterm()
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}.log"
    started = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait_until(ready, process, log, limit)
        yield time.perf_counter() - started
    finally:
        _end(process)


@contextmanager
def served(*words: str, seconds: float = 120.0) -> Iterator[tuple[int, int]]:
    """Run `serve` with `words` and REST alone until the block ends; gives port and process id.

    Exits if the server ends or is not ready in `seconds`.
    """
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "mindspore_serving", "serve", *words, "--no-grpc"]
    command += ["--http-port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + seconds
            while not answers_ready(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit("the server did not start")
                time.sleep(0.1)
            yield port, process.pid
        finally:
            process.terminate()


def answers_ready(port: int) -> bool:
    """Return whether the server at `port` says that it is ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def _wait_until(
    ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, limit: float
) -> None:
    deadline = time.perf_counter() + limit
    last = "a wrong answer"
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server exited with {process.returncode}; see {log}")
        try:
            if ready():
                return
        except OSError as error:
            last = repr(error)
        time.sleep(0.01)
    raise RuntimeError(f"no right answer in {limit:.0f} s, last {last}; see {log}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to stop; then end whatever is left of the session that it was started in."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_LIMIT)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
