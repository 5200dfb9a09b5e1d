"""Environments for workers, each made once of what a directory lists.

By `uv` where it is installed, else by `venv` and pip.  An environment is found again by the content
of the lists, so changed ones make another.  Knows no workers.
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

LISTS = ("pylock.toml", "requirements.lock", "requirements.txt")  # the first that is there
_MADE = ".made"  # a file in an environment that is complete
_STEPS = ("Collecting ", "Downloading ", "Building wheel", "Installing ", "Prepared ", "Resolved ")


class Environments:
    """Makes environments on threads of their own; `close` ends all that."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    async def make(self, directory: str, python: str) -> Interpreter:
        """The interpreter of the environment of `directory`, based on that of `python`.

        Others that make the same one wait for the first, in any process.  Raises StartError: no
        list, no such interpreter, or the line by which the installation failed.
        """
        plan = await on_thread("interpreters", _plan, Path(directory), python)
        if not plan.is_made:
            await on_thread("environments", self._make, plan)
        return await on_thread("interpreters", find_interpreter, plan.python)

    def close(self) -> None:
        """End what installs, and start nothing more."""
        with self._lock:
            self._is_closed = True
            for child in self._running:
                child.kill()

    def _make(self, plan: "_Plan") -> None:
        with open(f"{plan.target}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if plan.is_made:
                return  # by another process, meanwhile
            log.info("making the environment of %s in %s", plan.source, plan.target)
            shutil.rmtree(plan.target, ignore_errors=True)  # of one that was not finished
            with Bar(f"environment {plan.source.parent.name}") as bar:
                for command in plan.commands():
                    self._run(command, plan, lock.fileno(), bar)
            (plan.target / _MADE).touch()

    def _run(self, command: Sequence[str], plan: "_Plan", lock: int, bar: "Bar") -> None:
        """The child has the `lock` too: if we are killed, others wait until it has ended."""
        lines: deque[str] = deque(maxlen=200)
        with self._start(command, plan, lock) as child:
            for line in child.stdout or ():
                lines.append(line)
                bar.show(line.strip())
        with self._lock:
            self._running.discard(child)
        if child.returncode:
            why = failing_line(lines) or f"{command[0]} ended with {child.returncode}"
            raise StartError(f"the environment of {str(plan.source)!r} cannot be made: {why}")

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
                cwd=plan.source.parent,  # what lists name may be relative to them
            )
            self._running.add(child)
            return child


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is made of the list `source`, where, and on which interpreter it is based."""

    source: Path
    base: str
    target: Path

    @property
    def is_made(self) -> bool:
        return (self.target / _MADE).exists()

    @property
    def python(self) -> str:
        return str(self.target / "bin" / "python")

    def commands(self) -> list[list[str]]:
        """What makes it, one after another."""
        own = list(PACKAGES)  # the worker's, beside those of the list
        uv = shutil.which("uv")
        if uv is not None:
            install = [uv, "pip", "install", "--python", self.python]
            make = [uv, "venv", "--python", self.base, str(self.target)]
        elif self.source.suffix == ".toml":
            raise StartError(f"{str(self.source)!r} is for uv, which is not installed")
        else:
            install = [self.python, "-m", "pip", "install", "--disable-pip-version-check"]
            install += ["--progress-bar", "off"]
            make = [self.base, "-m", "venv", str(self.target)]
        if self.source.suffix == ".toml":
            return [make, [*install, "-r", str(self.source)], [*install, *own]]
        return [make, [*install, "-r", str(self.source), *own]]


def _plan(directory: Path, python: str) -> _Plan:
    sources = [directory / name for name in LISTS if (directory / name).is_file()]
    if not sources:
        raise StartError(
            f"the environment {str(directory)!r} is no directory with a file "
            f"{', '.join(LISTS[:-1])} or {LISTS[-1]}"
        )
    base, version = find_base_python(python)
    content = hashlib.sha256(f"{os.path.realpath(base)} {version} {list(PACKAGES)}".encode())
    for path in sorted(directory.iterdir()):  # also those that the first one names
        if path.suffix in (".txt", ".lock") or path.name in LISTS:
            data = path.read_bytes()
            content.update(f"{path.name} {len(data)} ".encode() + data)
    name = f"{directory.resolve().name}-{content.hexdigest()[:16]}"
    return _Plan(sources[0].absolute(), base, cache_directory("environments") / name)


def failing_line(lines: Iterable[str]) -> str:
    """The line of what an installer printed that says why it failed; "" if it printed nothing."""
    said = [line.strip() for line in lines if line.strip()]
    for mark in ("ERROR:", "error:", "×", "╰─▶"):
        found = [line for line in said if line.startswith(mark)]
        if found:
            chosen = next((line for line in found if "No matching" not in line), found[0])
            return chosen[:500]
    return said[-1][:500] if said else ""


class Bar:
    """How many packages have been found so far, and which step runs; nothing where stderr is no
    terminal.
    """

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
        """A line of an installer."""
        if not line.startswith(_STEPS):
            return
        self._count += line.startswith(_STEPS[0])
        if self._is_shown:
            width = shutil.get_terminal_size().columns - 1
            text = f"{self._label}: {self._count} packages, {line}"[:width]
            self._stream.write(f"\r{text:<{width}}")
            self._stream.flush()
