"""A server with a language model that talks without end, and a classic servable beside it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.commands import SERVING, Command
from tests.ports import free_port

MODEL = "chatty"
CONTEXT = 65536  # tokens; at temperature 0 an answer is as long as fits, half a minute of it


@dataclass(frozen=True, slots=True)
class Talking:
    """A server started by the command line."""

    command: Command
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def talking(directory: Path, *options: str) -> Iterator[Talking]:
    """`serve` of the model MODEL and of the servable "words", with `options`."""
    for library in ("openvino", "torch", "transformers"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    from tests.cli.conftest import write_words
    from tests.llm import chatty

    write_words(directory)
    chatty.build(directory, MODEL, context=CONTEXT)
    # In f32 an answer is the same whatever is guessed or in the cache.
    own = ("--llm-option", "kv_cache_memory=64e6", "--llm-option", "dtype=f32")
    with serving(directory, MODEL, "words", *own, *options) as running:
        yield running


@contextmanager
def serving(directory: Path, *words: str) -> Iterator[Talking]:
    """`serve` with `words` in `directory`, until it is ready."""
    port = free_port()
    line = [*SERVING, "serve", *words, "--http-port", str(port), "--no-grpc"]
    with Command(line, directory) as command:
        command.says("Ctrl-C stops")
        yield Talking(command, port)
