"""Environments for tests, made without downloading anything: the packages of a worker are links to
ours, and there is a module that we do not have."""

import sys
import venv
from pathlib import Path
from typing import Any

import google.protobuf
import msgspec
import numpy

from tests.e2e.harness import Calls

ONLY_THERE = "only_in_that_environment"
SOURCE = """
import importlib.util, sys
names = ("only_in_that_environment", "uvloop", "starlette", "mindspore_serving")
found = [name for name in names if importlib.util.find_spec(name)]

@method("prefix", "numpy", "found", "sum")
def look(x):
    return sys.prefix, np.__version__, ",".join(found), (x + 1).sum()

"""


def light_environment(directory: Path, *, lacks: str = "") -> Path:
    """The interpreter of a new environment, which has no package named `lacks`."""
    venv.create(directory, symlinks=True, with_pip=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = directory / "lib" / version / "site-packages"
    for name, module in (("msgspec", msgspec), ("numpy", numpy), ("protobuf", google.protobuf)):
        if name != lacks:
            _link(Path(module.__file__ or "").parent, packages, name)
    (packages / f"{ONLY_THERE}.py").write_text("answer = 42\n")
    return directory / "bin" / "python"


def _link(found: Path, packages: Path, name: str) -> None:
    if name == "protobuf":
        (packages / "google").mkdir()
        for part in ("protobuf", "_upb"):
            (packages / "google" / part).symlink_to(found.parent / part)
        return
    (packages / name).symlink_to(found)
    libraries = found.parent / f"{name}.libs"
    if libraries.is_dir():
        (packages / libraries.name).symlink_to(libraries)


def look(calls: Calls, servable: str) -> dict[str, Any]:
    """What the servable sees."""
    (answer,) = calls.post(servable, "look", [{"x": [1, 2, 3]}])["instances"]
    return dict(answer)
