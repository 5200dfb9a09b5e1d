"""Python environments for workers, created once from a directory with a list of packages.

They are created with `uv` if it is installed, else with `venv` and pip.  The cache key is the
content of the lists, so a changed list gives a new environment.  Does not know workers.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mindspore_serving import log
from mindspore_serving.aio import on_thread
from mindspore_serving.errors import StartError
from mindspore_serving.process.interpreter import (
    PACKAGES,
    Interpreter,
    cache_directory,
    find_base_python,
    find_interpreter,
    foreign_environment,
)

LISTS = ("pylock.toml", "requirements.lock", "requirements.txt")  # the first existing one is used
_COMPLETE = ".made"  # a file that marks a complete environment
_STEPS = ("Collecting ", "Downloading ", "Building wheel", "Installing ", "Prepared ", "Resolved ")


class Environments:
    """Creates environments on background threads; `close` ends them."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    async def make(self, directory: str, python: str) -> Interpreter:
        """Return the interpreter of the environment of `directory`, creating it if necessary.

        `python` is the base interpreter.  Concurrent calls for the same environment, also of other
        processes, wait for the first.  Raises StartError if there is no list or no such
        interpreter, or with the error line of the installation.
        """
        plan = await on_thread("interpreters", _plan, Path(directory), python)
        if not plan.is_made:
            await on_thread("environments", self._make, plan)
        return await on_thread("interpreters", find_interpreter, plan.python)

    def close(self) -> None:
        """Kill running installations, and start no more."""
        with self._lock:
            self._is_closed = True
            for child in self._running:
                child.kill()

    def _make(self, plan: "_Plan") -> None:
        with open(f"{plan.target}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if plan.is_made:
                return  # another process has created it meanwhile
            log.info("creating the environment of %s in %s", plan.source, plan.target)
            shutil.rmtree(plan.target, ignore_errors=True)  # an incomplete one
            with Bar(f"environment {plan.source.parent.name}") as bar:
                for command in plan.commands():
                    self._run(command, plan, lock.fileno(), bar)
            (plan.target / _COMPLETE).touch()

    def _run(self, command: Sequence[str], plan: "_Plan", lock: int, bar: "Bar") -> None:
        """Run a command of the installer.

        The child inherits `lock`: if we are killed, other processes wait until it has ended.
        """
        lines: deque[str] = deque(maxlen=200)
        with self._start(command, plan, lock) as child:
            for line in child.stdout or ():
                lines.append(line)
                bar.show(line.strip())
        with self._lock:
            self._running.discard(child)
        if child.returncode:
            why = failing_line(lines) or f"{command[0]} ended with {child.returncode}"
            raise StartError(f"cannot create the environment of {str(plan.source)!r}: {why}")

    def _start(self, command: Sequence[str], plan: "_Plan", lock: int) -> "subprocess.Popen[str]":
        with self._lock:
            if self._is_closed:
                raise StartError("the server is stopping")
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=foreign_environment(),
                pass_fds=(lock,),
                cwd=plan.source.parent,  # paths in a list may be relative to it
            )
            self._running.add(child)
            return child


@dataclass(frozen=True, slots=True)
class _Plan:
    """Plan of an environment: its list `source`, its base interpreter and its directory."""

    source: Path
    base: str
    target: Path

    @property
    def is_made(self) -> bool:
        return (self.target / _COMPLETE).exists()

    @property
    def python(self) -> str:
        return str(self.target / "bin" / "python")

    def commands(self) -> list[list[str]]:
        """Return the commands that create it, in order.  Raises StartError if uv is missing."""
        required = list(PACKAGES)  # of the worker, in addition to the list
        uv = shutil.which("uv")
        if uv is not None:
            install = [uv, "pip", "install", "--python", self.python]
            make = [uv, "venv", "--python", self.base, str(self.target)]
        elif self.source.suffix == ".toml":
            raise StartError(f"{str(self.source)!r} needs uv, which is not installed")
        else:
            install = [self.python, "-m", "pip", "install", "--disable-pip-version-check"]
            # Compiled are the files that a worker imports, at its first start, as after uv.
            install += ["--progress-bar", "off", "--no-compile"]
            make = [self.base, "-m", "venv", str(self.target)]
        if self.source.suffix == ".toml":
            return [make, [*install, "-r", str(self.source)], [*install, *required]]
        return [make, [*install, "-r", str(self.source), *required]]


def _plan(directory: Path, python: str) -> _Plan:
    sources = [directory / name for name in LISTS if (directory / name).is_file()]
    if not sources:
        raise StartError(
            f"the environment {str(directory)!r} is no directory with a file "
            f"{', '.join(LISTS[:-1])} or {LISTS[-1]}"
        )
    base, version = find_base_python(python)
    content = hashlib.sha256(f"{os.path.realpath(base)} {version} {list(PACKAGES)}".encode())
    for path in sorted(directory.iterdir()):  # also lists that the first one includes
        if path.suffix in (".txt", ".lock") or path.name in LISTS:
            data = path.read_bytes()
            content.update(f"{path.name} {len(data)} ".encode() + data)
    name = f"{directory.resolve().name}-{content.hexdigest()[:16]}"
    return _Plan(sources[0].absolute(), base, cache_directory("environments") / name)


def failing_line(lines: Iterable[str]) -> str:
    """Return the error line of an installer's output, else the last line; "" for no output."""
    output = [line.strip() for line in lines if line.strip()]
    for mark in ("ERROR:", "error:", "×", "╰─▶"):
        errors = [line for line in output if line.startswith(mark)]
        if errors:
            chosen = next((line for line in errors if "No matching" not in line), errors[0])
            return chosen[:500]
    return output[-1][:500] if output else ""


class Bar:
    """A progress line: the number of resolved packages and the current step, on a terminal only."""

    def __init__(self, label: str, stream: IO[str] | None = None) -> None:
        self._label = label
        self._stream = stream or sys.stderr
        self._is_shown = self._stream.isatty()
        self._count = 0

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            self._stream.write("\n")

    def show(self, line: str) -> None:
        """Update the progress by a line of the installer's output."""
        if not line.startswith(_STEPS):
            return
        self._count += line.startswith(_STEPS[0])
        if self._is_shown:
            width = shutil.get_terminal_size().columns - 1
            text = f"{self._label}: {self._count} packages, {line}"[:width]
            self._stream.write(f"\r{text:<{width}}")
            self._stream.flush()
