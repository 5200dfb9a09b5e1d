"""Ollama's Modelfile: a language model with its parameters and its system message."""

import math
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.hub.resolve import resolve_prepared
from mindspore_serving.servable.foreign.model import ForeignModel
from mindspore_serving.servable.foreign.reading import read_text

FILE = "Modelfile"
MAX_SIZE = 1 << 20  # bytes
_CHECKPOINT = "config.json"  # a directory with it is a model by itself
_QUOTES = '"""'
_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)[ \t]+(.*)", re.DOTALL)
_KNOWN = (
    "FROM", "PARAMETER", "TEMPLATE", "SYSTEM", "ADAPTER", "LICENSE", "MESSAGE", "REQUIRES",
    "CAPABILITY",
)  # fmt: skip
_IDLE = ("LICENSE", "REQUIRES", "CAPABILITY")  # nothing that a server would do
_ADAPTER = "an adapter is a model of its own here: serve the file in FROM with --adapter NAME=DIR"
_TEMPLATE = "TEMPLATE (the chat template in the model's file is used)"


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


# parameter -> option of the engine, and its type
_PARAMETERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "num_ctx": ("max_model_len", int),
    "num_thread": ("num_threads", int),
    "temperature": ("default_temperature", _number),
    "top_k": ("default_top_k", int),
    "top_p": ("default_top_p", _number),
    "min_p": ("default_min_p", _number),
    "repeat_penalty": ("default_repetition_penalty", _number),
    "num_predict": ("default_max_tokens", int),
}
_UNLIMITED = {"num_predict": (-1, -2), "num_thread": (0,), "num_ctx": (0,)}  # the default


def find(path: str) -> str:
    """Return the Modelfile at `path`, or in that directory unless it is a checkpoint itself."""
    name = os.path.basename(path)
    if name == FILE or name.startswith(f"{FILE}.") or name.lower().endswith(".modelfile"):
        return path if os.path.isfile(path) else ""
    inside = os.path.join(path, FILE)
    is_checkpoint = os.path.isfile(os.path.join(path, _CHECKPOINT))
    return inside if os.path.isfile(inside) and not is_checkpoint else ""


def read(path: str) -> ForeignModel:
    """Return the model of the Modelfile at `path`.

    Raises StartError for a file that cannot be read, a model that is not on this machine, and what
    is not done here.
    """
    sources, system, notes = [], "", []
    options: dict[str, Any] = {}
    for line, name, value in instructions(read_text(path, MAX_SIZE)):
        if name == "FROM":
            sources.append(value)
        elif name == "SYSTEM":
            system = value
        elif name == "PARAMETER":
            notes += _add_parameter(options, value, f"{FILE}, line {line}")
        elif name == "ADAPTER":
            raise StartError(f"{FILE}, line {line}: ADAPTER is not supported: {_ADAPTER}")
        elif name not in _IDLE:
            notes.append(_TEMPLATE if name == "TEMPLATE" else name)
    if system:
        options["system_message"] = system
    directory, name = os.path.split(os.path.splitext(path)[0])
    return ForeignModel(
        "Ollama",
        FILE,
        {"alias": os.path.basename(directory) if name.startswith(FILE) else name},
        without_effect=tuple(dict.fromkeys(notes)),
        language_path=_source(sources, directory),
        language_options=options,
    )


def instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Iterate over the instructions: line, name in capital letters, value without its quotes.

    Raises StartError for a line that is none, and for quotes without an end.
    """
    lines = text.splitlines(keepends=True)
    index = 0
    while index < len(lines):
        number, line = index + 1, lines[index]
        index += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _INSTRUCTION.match(line)
        name = match[1].upper() if match else ""
        if match is None or name not in _KNOWN:
            raise StartError(
                f"{FILE}, line {number}: {line.strip()!r:.60} is no instruction; known are "
                f"{', '.join(_KNOWN)}"
            )
        head, quotes, value = match[2].partition(_QUOTES)
        if not quotes or head.strip() not in ("", "user", "assistant", "system"):
            yield number, name, _unquoted(match[2])
            continue
        while _QUOTES not in value:
            if index == len(lines):
                raise StartError(f'{FILE}, line {number}: {name} has no closing """')
            value += lines[index]
            index += 1
        yield number, name, head + value.partition(_QUOTES)[0]


def _unquoted(text: str) -> str:
    text = text.strip()
    is_quoted = len(text) > 1 and text[0] == text[-1] == '"'
    return text[1:-1] if is_quoted else text


def parameter_options(name: str, value: object) -> dict[str, Any]:
    """Return the option of the engine for a parameter; {} for one that has no effect.

    Raises StartError for a value that is no number.
    """
    options: dict[str, Any] = {}
    _add_parameter(options, f"{name} {value}", "parameters")
    return options


def _add_parameter(options: dict[str, Any], text: str, where: str) -> list[str]:
    """Add an option for a parameter; return its name if it has no effect."""
    name, _, value = text.partition(" ")
    name, value = name.lower(), _unquoted(value)
    if name not in _PARAMETERS:
        return [f"PARAMETER {name}"]
    option, kind = _PARAMETERS[name]
    try:
        number = kind(value)
    except (ValueError, OverflowError):
        raise StartError(f"{where}: {name} is {value!r:.60}, expected a number") from None
    if number not in _UNLIMITED.get(name, ()):
        options[option] = number
    return []


def _source(sources: list[str], directory: str) -> str:
    """Return the path in FROM, or of its name: a GGUF file, or the directory of a checkpoint."""
    if len(sources) != 1:
        problem = "has no FROM" if not sources else "has several FROM"
        raise StartError(
            f"{FILE} {problem}, expected one with the path of a GGUF file or of a checkpoint "
            "(parts of a GGUF file can be merged by llama-gguf-split --merge)"
        )
    source = resolve_prepared(sources[0], directory)
    path = os.path.normpath(os.path.join(directory, os.path.expanduser(source)))
    if not os.path.exists(path):
        raise StartError(
            f"{FILE}: FROM is {source!r:.200}, but there is no '{path}'. A model of Ollama's "
            f"registry is written ollama://{source:.200}, one of Hugging Face hf.co/ORG/NAME"
        )
    return path
