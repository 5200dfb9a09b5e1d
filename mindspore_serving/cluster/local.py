"""Starts workers as processes of this machine, over a socket pair and two shared arenas.

Knows nothing of servables: what the worker is to load goes over the channel.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import mindspore_serving
from mindspore_serving.cluster.base import Launched
from mindspore_serving.errors import StartError
from mindspore_serving.ipc import arena

LOG_DIRECTORY = "serving_logs"
# Malloc then asks the kernel for pages of 2 MiB: what a model reads in every step is read faster.
# glibc takes it from the environment of a new process alone.
HUGE_PAGES = "glibc.malloc.hugetlb"
_TAIL = 2000  # bytes of a dead worker's log that are shown


class LocalProcess:
    """A child that leads its own process group, so that all it starts can be ended with it."""

    def __init__(self, child: "subprocess.Popen[bytes]", log_path: Path | None) -> None:
        self._child = child
        self._log_path = log_path
        self._start = log_path.stat().st_size if log_path else 0

    @property
    def pid(self) -> int:
        return self._child.pid

    async def wait(self) -> int:
        if self._child.returncode is not None:
            return self._child.returncode
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return self._reap()
        ended = asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return self._reap()

    def _reap(self) -> int:
        self.kill()  # what the worker started and left behind
        return self._child.wait()

    def kill(self) -> None:
        if self._child.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def log_tail(self) -> str:
        if self._log_path is None:
            return ""
        with suppress(OSError), self._log_path.open("rb") as file:
            size = self._log_path.stat().st_size
            file.seek(max(self._start, size - _TAIL))
            return file.read(_TAIL).decode(errors="replace").strip()
        return ""


class LocalLauncher:
    """Worker processes of this machine; their output goes to files in `serving_logs/`."""

    async def launch(self, name: str, log_name: str) -> Launched:
        ours, theirs = socket.socketpair()
        to_worker, to_master = arena.create(), arena.create()
        path = _log_path(log_name)
        try:
            child = await asyncio.to_thread(
                _spawn, name, path, (theirs.fileno(), to_master, to_worker)
            )
            process = LocalProcess(child, path)
            return Launched(process, ours, arena.Arena(to_worker), arena.ArenaView(to_master))
        except OSError as error:
            ours.close()
            raise StartError(f"could not start a worker process for {name}: {error}") from error
        finally:
            theirs.close()
            os.close(to_worker)
            os.close(to_master)


def _spawn(
    name: str, log_path: Path | None, descriptors: tuple[int, int, int]
) -> "subprocess.Popen[bytes]":
    channel, to_write, to_read = descriptors
    # -P: nothing in the current directory may hide what the worker imports
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    command = [sys.executable, *safe, "-m", "mindspore_serving.execution"]
    command += ["--channel", f"fd:{channel}", "--arenas", f"{to_write},{to_read}", "--name", name]
    output = log_path.open("ab") if log_path else None
    try:
        return subprocess.Popen(
            command,
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,
            env=_environment(),
        )
    finally:
        if output:
            output.close()


def _environment() -> dict[str, str]:
    """Ours, with this package findable even if it was not installed, and memory in huge pages."""
    environment = dict(os.environ)
    tunables = environment.get("GLIBC_TUNABLES", "")
    if HUGE_PAGES not in tunables:
        asked = f"{HUGE_PAGES}=1"
        environment["GLIBC_TUNABLES"] = f"{tunables}:{asked}" if tunables else asked
    root = str(Path(mindspore_serving.__file__).parent.parent)
    if not root.endswith(("site-packages", "dist-packages")):
        old = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = root + (os.pathsep + old if old else "")
    environment["PYTHONUNBUFFERED"] = "1"
    return environment


def _log_path(log_name: str) -> Path | None:
    """The worker's log file; None (our own output) where no directory can be made."""
    directory = Path(LOG_DIRECTORY)
    try:
        directory.mkdir(exist_ok=True)
        path = directory / f"{log_name}.log"
        path.touch()
    except OSError:
        return None
    return path.absolute()
