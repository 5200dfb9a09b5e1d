"""Paths of `serve` that name a network in code, as net.py:Net.  Imports no file."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace

from mindspore_serving.cli.settings import ServeSettings
from mindspore_serving.errors import InvalidInputs, StartError, did_you_mean

_CODE = re.compile(r"(?P<file>.+\.py):(?P<name>[^\W\d]\w*)")
_OPTIONS = ("weights", "arguments", "inputs", "mode")


def of(settings: ServeSettings) -> list[str]:
    """Return the paths of networks.  Raises InvalidInputs for several with one file of weights."""
    paths = [path for path in settings.paths if _is_network(path)]
    options = [name for name in _OPTIONS if getattr(settings, name)]
    if options and len(paths) != 1:
        text = f"{len(paths)} are served" if paths else "none is served"
        raise InvalidInputs(
            f"--{options[0]} is for one network in code, as net.py:Net, but {text}: "
            + ("write a configuration file" if paths else "leave it out, or name the network")
        )
    return paths


def _is_network(path: str) -> bool:
    return "://" not in path and _CODE.fullmatch(path) is not None


def without(settings: ServeSettings) -> ServeSettings:
    """Return `settings` of the other paths, to which the options of networks do not apply."""
    remaining: Sequence[str] = [path for path in settings.paths if not _is_network(path)]
    return replace(settings, paths=remaining, weights="", arguments=None, inputs=None, mode="")


def locate(path: str) -> tuple[tuple[str, str], str]:
    """Return (directory, file) and the class or function of a network.

    Raises StartError if there is no such file.
    """
    match = _CODE.fullmatch(path)
    assert match is not None
    directory, file = os.path.split(check_file(match["file"]))
    return (directory, file), match["name"]


def check_file(path: str) -> str:
    """Return `path` as an absolute path.  Raises StartError if there is no such file."""
    absolute = os.path.abspath(os.path.expanduser(path))
    if not os.path.isfile(absolute):
        directory, file = os.path.split(absolute)
        names = os.listdir(directory) if os.path.isdir(directory) else []
        raise StartError(f"There is no file '{absolute}'{did_you_mean(file, names)}")
    return absolute
