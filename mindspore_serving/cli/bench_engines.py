"""The servers of `bench --engines`: `serve` as a child process, with one engine after the other.

Knows no requests.  Only one of them runs at a time, so each has the machine's memory for itself.
"""

import os
import re
import shlex
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from mindspore_serving.cli.bench_settings import BenchSettings
from mindspore_serving.cli.endpoint import to_key
from mindspore_serving.cli.serve import KEYS
from mindspore_serving.cli.status import ask
from mindspore_serving.errors import InvalidInputs, ServingError, StartError, did_you_mean
from mindspore_serving.llm.catalog import ENGINES, OURS
from mindspore_serving.process.child import Child, Program, exit_text

_NAMES = (OURS, *ENGINES)
_HOST = "127.0.0.1"
_READY = "Ready after"  # how the line of `serve` begins
_ERROR = re.compile("mindspore-serving(?: serve)?: ")
_SECONDS = 60.0  # in which a server without requests ends


def arguments(settings: BenchSettings) -> dict[str, list[str]]:
    """Those of `serve` for each engine.  Raises InvalidInputs naming the option that is wrong."""
    if not Path(settings.url).exists():
        raise InvalidInputs(
            "--engines starts a server for each engine: expected the path of a model in place of "
            f"a URL, and {settings.url!r} is no file or directory"
        )
    _check_names(settings.engines)
    models = _by_engine(settings, "--engine-model", settings.engine_model)
    pythons = _by_engine(settings, "--engine-python", settings.engine_python)
    options = _by_engine(settings, "--engine-serve", settings.engine_serve)
    found = {}
    for name in settings.engines:
        words = [models.get(name, settings.url), "--engine", name]
        words += ["--python", pythons[name]] if name in pythons else []
        found[name] = words + _split(options.get(name, ""))
    return found


@contextmanager
def served(words: Sequence[str], settings: BenchSettings) -> Iterator[str]:
    """The URL of `serve` with `words`, which is ready, and ends with the block.

    Raises StartError with what it says if it does not become ready.
    """
    with _held_port() as port, tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        words = [*words, "--strict", "--host", _HOST, "--http-port", str(port), "--no-grpc"]
        reading, writing = os.pipe2(os.O_CLOEXEC)
        with open(reading, encoding="utf-8", errors="replace") as output:
            with open(writing, "wb") as printed:
                program = Program(
                    __name__,
                    ["serve", *words],
                    variables={KEYS: to_key(settings)},
                    stdout=printed.fileno(),
                    stderr=errors.fileno(),
                )
                server = Child(program)
            try:
                if not any(line.startswith(_READY) for line in output):
                    status = server.join()
                    errors.seek(0)
                    raise StartError(_reason(errors.read()) or exit_text(status))
                yield f"http://{_HOST}:{port}"
            finally:
                _end(server)


def memory(url: str, settings: BenchSettings) -> int:
    """Bytes in RAM of the workers of the server at `url`; 0 if one of them has just ended.

    What an engine computes in processes of its own counts, so the worker's own number in /metrics
    is not enough.
    """
    try:
        workers = [worker for one in ask(url, settings) for worker in one["workers"]]
        return sum(_memory(int(worker["pid"])) for worker in workers)
    except (OSError, ServingError):
        return 0


def _check_names(engines: Sequence[str]) -> None:
    for at, name in enumerate(engines):
        if name not in _NAMES:
            near, known = did_you_mean(name, _NAMES), ", ".join(_NAMES)
            raise InvalidInputs(f"--engines has {name!r}, expected some of {known}{near}")
        if name in engines[:at]:
            raise InvalidInputs(f"--engines has {name!r} twice")


def _split(options: str) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:
        raise InvalidInputs(f"--engine-serve has {options!r}: {error}") from error


def _by_engine(settings: BenchSettings, option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """The values of a repeatable `option` with texts ENGINE=VALUE.  Raises InvalidInputs."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in settings.engines or not value:
            names = ", ".join(settings.engines)
            raise InvalidInputs(f"{option} is {text!r}, expected ENGINE=VALUE, ENGINE of {names}")
        if name in found:
            raise InvalidInputs(f"{option} has {name} twice, but it can have one value only")
        found[name] = value
    return found


@contextmanager
def _held_port() -> Iterator[int]:
    """A port that the system gives to nobody meanwhile, and where a server can listen: a socket
    that does not listen shares its port with one that reuses addresses.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((_HOST, 0))
        yield held.getsockname()[1]


def _reason(errors: str) -> str:
    """The last error in what `serve` wrote, in a line; "" for none."""
    return " ".join(_ERROR.split(errors)[-1].split())


def _end(server: Child) -> None:
    server.terminate()
    with suppress(TimeoutError):
        server.join(_SECONDS)
    server.close()


def _memory(pid: int) -> int:
    """Bytes in RAM of a process and of those below it; a page of several is shared out.

    Raises OSError: there is no such process.
    """
    place = Path(f"/proc/{pid}")
    lines = (place / "smaps_rollup").read_text().splitlines()
    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    below = [one for file in place.glob("task/*/children") for one in file.read_text().split()]
    return 1024 * kilobytes + sum(_memory(int(one)) for one in below)


if __name__ == "__main__":
    from mindspore_serving.cli import main
    from mindspore_serving.process.entry import tie_to_parent

    sys.exit(main(tie_to_parent(sys.argv[1:])))
