"""Servers of `bench --engines`: `serve` as a child process, with one engine after the other.

Only one server runs at a time, so each has the memory of the machine for itself.
"""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mindspore_serving.cli.bench_settings import BenchSettings
from mindspore_serving.cli.child_server import child_server
from mindspore_serving.cli.endpoint import to_key
from mindspore_serving.cli.status import ask
from mindspore_serving.errors import InvalidInputs, ServingError, did_you_mean
from mindspore_serving.hub.reference import parse_reference
from mindspore_serving.llm.catalog import ENGINES, OURS

_NAMES = (OURS, *ENGINES)


def arguments(settings: BenchSettings) -> dict[str, list[str]]:
    """Return the arguments of `serve` for each engine.  Raises InvalidInputs for a wrong option."""
    if not parse_reference(settings.url) and not Path(settings.url).exists():
        raise InvalidInputs(
            "--engines starts a server for each engine, so it needs the path of a model instead of "
            f"a URL: there is no file or directory {settings.url!r}"
        )
    _check_names(settings.engines)
    models = _by_engine(settings, "--engine-model", settings.engine_model)
    pythons = _by_engine(settings, "--engine-python", settings.engine_python)
    options = _by_engine(settings, "--engine-serve", settings.engine_serve)
    arguments_by_engine = {}
    for name in settings.engines:
        words = [models.get(name, settings.url), "--engine", name]
        words += ["--python", pythons[name]] if name in pythons else []
        arguments_by_engine[name] = words + _split(options.get(name, ""))
    return arguments_by_engine


@contextmanager
def served(words: Sequence[str], settings: BenchSettings) -> Iterator[str]:
    """Run `serve` with `words` for the block, and yield its URL when it is ready.

    Raises StartError with its error message if it does not become ready.
    """
    with child_server(words, key=to_key(settings)) as server:
        server.wait_until_ready()
        yield server.url


def memory(url: str, settings: BenchSettings) -> int:
    """Return the bytes in RAM of the workers of the server at `url`; 0 if one has just ended.

    The worker's own number in /metrics leaves out processes that an engine starts.
    """
    try:
        workers = [worker for servable in ask(url, settings) for worker in servable["workers"]]
        return sum(_memory(int(worker["pid"])) for worker in workers)
    except (OSError, ServingError):
        return 0


def _check_names(engines: Sequence[str]) -> None:
    for index, name in enumerate(engines):
        if name not in _NAMES:
            near, known = did_you_mean(name, _NAMES), ", ".join(_NAMES)
            raise InvalidInputs(f"--engines has {name!r}, expected some of {known}{near}")
        if name in engines[:index]:
            raise InvalidInputs(f"--engines has {name!r} twice")


def _split(options: str) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:
        raise InvalidInputs(f"--engine-serve has {options!r}: {error}") from error


def _by_engine(settings: BenchSettings, option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """Return the values of a repeatable `option` by engine; `texts` are ENGINE=VALUE.

    Raises InvalidInputs.
    """
    values: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in settings.engines or not value:
            names = ", ".join(settings.engines)
            raise InvalidInputs(f"{option} is {text!r}, expected ENGINE=VALUE, ENGINE of {names}")
        if name in values:
            raise InvalidInputs(f"{option} has {name} twice, but it takes one value")
        values[name] = value
    return values


def _memory(pid: int) -> int:
    """Return the bytes in RAM of a process and its descendants; shared pages count in part (PSS).

    Raises OSError if there is no such process.
    """
    directory = Path(f"/proc/{pid}")
    lines = (directory / "smaps_rollup").read_text().splitlines()
    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    children = [
        pid_text
        for file in directory.glob("task/*/children")
        for pid_text in file.read_text().split()
    ]
    return 1024 * kilobytes + sum(_memory(int(pid_text)) for pid_text in children)
