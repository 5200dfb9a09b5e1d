"""Python interpreters for workers: the current one, or another with its own packages.

Another interpreter imports this package through a directory that holds a link to it and nothing
else, so that all other packages are those of that interpreter.  Does not know servables.
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
from mindspore_serving.errors import StartError, reason

MIN_PYTHON = (3, 10)
PACKAGES: Mapping[str, str] = {
    "msgspec>=0.18": "msgspec",
    "numpy>=1.25": "numpy",
    "protobuf>=5.29.1": "google.protobuf",
}
"""Requirements of a worker beyond the standard library, with the module of each to import."""
CACHE = "MINDSPORE_SERVING_CACHE"  # environment variable with the cache directory
_MAX_ERROR = 300  # characters of a line; longer ones repeat our code
_PROBE_SECONDS = 60.0
_ANSWER = "interpreter:"  # prefix of the probe's output; a sitecustomize may print as well
_PROBE = """
import json, sys
versions = {}
if sys.version_info >= %r:
    import importlib
    for name in %r:
        try:
            versions[name] = importlib.import_module(name).__version__
        except Exception as error:
            versions[name] = [type(error).__name__ + ": " + str(error)]
print(%r + json.dumps([list(sys.version_info[:3]), versions]))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python interpreter that can run a worker; `is_current` if it runs this process."""

    path: str
    version: tuple[int, ...]
    is_current: bool = False

    def __str__(self) -> str:
        return f"{self.path} ({'.'.join(map(str, self.version))})"

    def command(self, module: str) -> list[str]:
        """Return the command that runs `module` with no current directory in `sys.path`."""
        safe = ["-P"] if self.version >= (3, 11) else []
        return [self.path, *safe, "-m", module]

    def environment(self, variables: Mapping[str, str | None]) -> dict[str, str]:
        """Return the environment of this process with `variables` set (None: removed).

        This package can be imported in it, even if it is not installed.
        """
        environment = dict(os.environ)
        root = Path(mindspore_serving.__file__).parent
        if not self.is_current:
            environment.pop("PYTHONHOME", None)
            environment.pop("VIRTUAL_ENV", None)
            kept = [package_path(root), *_cann_paths(environment)]  # not those of our packages
            environment["PYTHONPATH"] = os.pathsep.join(kept)
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


CURRENT = Interpreter(sys.executable, sys.version_info[:3], is_current=True)


def find_interpreter(python: str) -> Interpreter:
    """Return the interpreter `python`, a path or a name in PATH.  Blocks while it is tried.

    Raises StartError with one sentence if it does not exist, cannot be run, is too old, or lacks a
    package that a worker needs.
    """
    path = _locate(python)
    version, packages = _probe(path)
    _check_version(python, version)
    problems = [text for text in (_problem(row, packages) for row in PACKAGES) if text]
    if problems:
        requirements = " ".join(f"'{row}'" for row in PACKAGES)
        raise StartError(
            f"the interpreter {python!r} cannot run a worker: {'; '.join(problems)}; install them "
            f"with: {path} -m pip install {requirements}"
        )
    return Interpreter(path, version)


def _cann_paths(environment: Mapping[str, str]) -> list[str]:
    """Return the entries of PYTHONPATH that CANN's set_env.sh has added.

    CANN compiles operators with these packages, which are in no environment.
    """
    homes = [environment.get(name) for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")]
    entries = environment.get("PYTHONPATH", "").split(os.pathsep)
    return [entry for entry in entries if any(home and entry.startswith(home) for home in homes)]


def find_base_python(python: str) -> tuple[str, tuple[int, ...]]:
    """Return path and version of the interpreter `python`, which may lack packages.

    Raises StartError as `find_interpreter`.
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
    if version < MIN_PYTHON:
        least = ".".join(map(str, MIN_PYTHON))
        shown = ".".join(map(str, version))
        raise StartError(f"the interpreter {python!r} is Python {shown}, expected {least} or later")


def package_path(package: Path) -> str:
    """Return a directory for PYTHONPATH in which only `package` can be imported."""
    target = package.resolve()
    name = hashlib.sha256(os.fsencode(target)).hexdigest()[:16]
    link = cache_directory("package", name) / package.name
    if not link.exists():
        with suppress(FileExistsError):  # another process has made it
            link.symlink_to(target)
    return str(link.parent)


def cache_directory(*names: str) -> Path:
    """Create and return a directory of the cache, for files that can be created again.

    Raises StartError if it cannot be created.
    """
    chosen = os.environ.get(CACHE)
    user = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    directory = Path(chosen or os.path.join(user, "mindspore-serving"), *names)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(
            f"cannot create the directory {str(directory)!r} ({error.strerror}): set the "
            f"environment variable {CACHE} to another"
        ) from None
    return directory


def _probe(path: str) -> tuple[tuple[int, ...], dict[str, str | list[str]]]:
    """Return the version of the interpreter at `path`, and each module's version or error.

    An error is a list of one string.  Raises StartError if the interpreter cannot be run.
    """
    source = _PROBE % (MIN_PYTHON, list(PACKAGES.values()), _ANSWER)
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
        raise StartError(f"the interpreter {path!r} cannot be run: {reason(error)}") from None
    answers = [line for line in done.stdout.splitlines() if line.startswith(_ANSWER)]
    if not answers:
        errors = done.stderr.strip().splitlines()
        shown = f" ({errors[-1][:200]})" if errors and len(errors[-1]) < _MAX_ERROR else ""
        raise StartError(
            f"{path!r} is not an interpreter of Python{shown}: expected one, as /usr/bin/python3"
        )
    version, packages = json.loads(answers[-1].removeprefix(_ANSWER))
    return tuple(version), packages


def foreign_environment() -> dict[str, str]:
    """Return our environment without variables of Python, for programs of other interpreters."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _problem(requirement: str, packages: Mapping[str, str | list[str]]) -> str:
    """Describe the problem with the package of a requirement of PACKAGES; "" if there is none."""
    package, _, least = requirement.partition(">=")
    version = packages[PACKAGES[requirement]]
    if isinstance(version, list):
        is_missing = version[0].startswith("ModuleNotFoundError")
        return f"{package} is not installed" if is_missing else f"{package} fails ({version[0]})"
    is_old = _numbers(version) < _numbers(least)
    return f"{package} is {version}, expected {least} or later" if is_old else ""


def _numbers(version: str) -> list[int]:
    """Return the leading numbers of a version such as 1.26.4."""
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return numbers
