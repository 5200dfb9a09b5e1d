"""Which interpreter runs a worker: our own, or one with packages of its own.

Another interpreter gets this package through a directory that has a link to it and nothing else,
so that all other packages are those of that interpreter.  Knows no servables.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import mindspore_serving
from mindspore_serving.errors import StartError

LEAST_PYTHON = (3, 10)
PACKAGES: Mapping[str, str] = {
    "msgspec>=0.18": "msgspec",
    "numpy>=1.25": "numpy",
    "protobuf>=5.29.1": "google.protobuf",
}
"""What a worker needs beside the standard library, with the modules to import."""
CACHE = "MINDSPORE_SERVING_CACHE"  # in our environment: where files are that can be made again
_PROBE_SECONDS = 60.0
_ANSWER = "interpreter:"  # before what the probe prints; a sitecustomize may print as well
_PROBE = """
import json, sys
found = {}
if sys.version_info >= %r:
    import importlib
    for name in %r:
        try:
            found[name] = importlib.import_module(name).__version__
        except Exception as error:
            found[name] = [type(error).__name__ + ": " + str(error)]
print(%r + json.dumps([list(sys.version_info[:3]), found]))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that can run a worker."""

    path: str
    version: tuple[int, ...]
    is_own: bool = False  # the one of this process

    def __str__(self) -> str:
        return f"{self.path} ({'.'.join(map(str, self.version))})"

    def command(self, module: str) -> list[str]:
        """Runs `module`; nothing in the current directory hides what that imports."""
        safe = ["-P"] if self.version >= (3, 11) else []
        return [self.path, *safe, "-m", module]

    def environment(self, variables: Mapping[str, str | None]) -> dict[str, str]:
        """Return that of this process with `variables` set (None: removed), in which this package
        can be imported even if it was not installed.
        """
        environment = dict(os.environ)
        root = Path(mindspore_serving.__file__).parent
        if not self.is_own:
            environment.pop("PYTHONHOME", None)
            environment.pop("VIRTUAL_ENV", None)
            environment["PYTHONPATH"] = package_path(root)  # not ours: our packages stay out
            directory = os.path.dirname(self.path)
            environment["PATH"] = directory + os.pathsep + environment.get("PATH", os.defpath)
        elif not str(root.parent).endswith(("site-packages", "dist-packages")):
            old = environment.get("PYTHONPATH")
            environment["PYTHONPATH"] = str(root.parent) + (os.pathsep + old if old else "")
        for name, value in variables.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        return environment


OWN = Interpreter(sys.executable, sys.version_info[:3], is_own=True)


def find_interpreter(python: str) -> Interpreter:
    """The interpreter `python`, a path or a name in PATH.  Blocks while it is tried.

    Raises StartError in one sentence: it is not there, cannot be run, is too old, or lacks a
    package that a worker needs.
    """
    path = _locate(python)
    version, found = _probe(path)
    _check_version(python, version)
    problems = [text for text in (_problem(row, found) for row in PACKAGES) if text]
    if problems:
        wanted = " ".join(f"'{row}'" for row in PACKAGES)
        raise StartError(
            f"the interpreter {python!r} cannot run a worker: {'; '.join(problems)}; install them "
            f"with: {path} -m pip install {wanted}"
        )
    return Interpreter(path, version)


def find_base(python: str) -> tuple[str, tuple[int, ...]]:
    """Where `python` is, which may lack packages, and its version.  Raises as
    `find_interpreter`.
    """
    path = _locate(python)
    version, _ = _probe(path)
    _check_version(python, version)
    return path, version


def _locate(python: str) -> str:
    path = shutil.which(python) if os.sep not in python else python
    if path is None or not os.path.exists(path):
        raise StartError(f"the interpreter {python!r} does not exist")
    if os.path.isdir(path) or not os.access(path, os.X_OK):
        raise StartError(f"the interpreter {python!r} is not an executable file")
    return os.path.abspath(path)


def _check_version(python: str, version: tuple[int, ...]) -> None:
    if version < LEAST_PYTHON:
        least = ".".join(map(str, LEAST_PYTHON))
        shown = ".".join(map(str, version))
        raise StartError(f"the interpreter {python!r} is Python {shown}, expected {least} or later")


def package_path(package: Path) -> str:
    """A directory in which nothing but `package` can be imported."""
    target = package.resolve()
    name = hashlib.sha256(os.fsencode(target)).hexdigest()[:16]
    link = cache_directory("package", name) / package.name
    if not link.exists():
        with suppress(FileExistsError):  # another process has made it
            link.symlink_to(target)
    return str(link.parent)


def cache_directory(*names: str) -> Path:
    """A directory for files that can be made again, which is there afterwards.  Raises StartError
    if it cannot be made.
    """
    chosen = os.environ.get(CACHE)
    user = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    directory = Path(chosen or os.path.join(user, "mindspore-serving"), *names)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(
            f"the directory {str(directory)!r} cannot be made ({error.strerror}): give another in "
            f"the environment variable {CACHE}"
        ) from None
    return directory


def _probe(path: str) -> tuple[tuple[int, ...], dict[str, str | list[str]]]:
    """The version of the interpreter at `path`, and of each module its version or the error."""
    source = _PROBE % (LEAST_PYTHON, list(PACKAGES.values()), _ANSWER)
    try:
        done = subprocess.run(
            [path, "-c", source],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            env=foreign_environment(),
            cwd=os.path.dirname(path),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StartError(f"the interpreter {path!r} cannot be run: {error}") from None
    answers = [line for line in done.stdout.splitlines() if line.startswith(_ANSWER)]
    if not answers:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise StartError(f"{path!r} is not an interpreter of Python: {said[-1][:200]}")
    version, found = json.loads(answers[-1].removeprefix(_ANSWER))
    return tuple(version), found


def foreign_environment() -> dict[str, str]:
    """Return our environment for a program that is not ours: without what is for our Python."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _problem(row: str, found: Mapping[str, str | list[str]]) -> str:
    """What is wrong with the package of a row of PACKAGES; "" for nothing."""
    package, _, least = row.partition(">=")
    version = found[PACKAGES[row]]
    if isinstance(version, list):
        is_missing = version[0].startswith("ModuleNotFoundError")
        return f"{package} is not installed" if is_missing else f"{package} fails ({version[0]})"
    is_old = _numbers(version) < _numbers(least)
    return f"{package} is {version}, expected {least} or later" if is_old else ""


def _numbers(version: str) -> list[int]:
    """The leading numbers of a version, as 1.26.4."""
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return numbers
