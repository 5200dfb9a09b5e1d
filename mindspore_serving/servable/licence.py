"""Licence of a model, as its files name it: model card, or the head of a licence file.

Texts of files are hostile: they are cut, and printed on one line.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from mindspore_serving.errors import InvalidInputs

_CARD = "README.md"
_FILES = ("LICENSE*", "LICENCE*", "License*", "COPYING*")
_MAX_CARD = 1 << 16  # bytes of a model card that are read
_MAX_LENGTH = 100  # characters
_FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)\r?\n---", re.DOTALL)


def find_licence(directory: Path) -> str:
    """Return the licence of the model in `directory`, "" if its files name none.

    It is `license` of the model card (README.md), as "apache-2.0", or the first line of LICENSE.
    """
    with suppress(OSError, UnicodeDecodeError, InvalidInputs):
        if licence := licence_of(_head(directory / _CARD)):
            return licence
    files = sorted(file for pattern in _FILES for file in directory.glob(pattern))
    for file in files:
        with suppress(OSError, UnicodeDecodeError):
            lines = (line.strip() for line in _head(file).splitlines())
            return f"{shorten_line(next(filter(None, lines), ''))} ({file.name})"
    return ""


def licence_of(card: str) -> str:
    """Return the licence in the front matter of a model card; "" without one.

    Raises InvalidInputs for a front matter that is not YAML.
    """
    match = _FRONT_MATTER.match(card)
    if match is None:
        return ""
    from mindspore_serving.core import yaml_text

    fields: Any = yaml_text.load(match[1], _CARD)
    if not isinstance(fields, dict):
        return ""
    names = [fields.get("license_name"), fields.get("license")]
    if names[1] != "other":
        names.reverse()
    shown = next((name for name in names if name), "")
    return shorten_line(", ".join(map(str, shown)) if isinstance(shown, list) else str(shown))


def shorten_line(text: str) -> str:
    """Return a text from a file as it may be printed: on one line, and not too long."""
    line = to_line(text).strip()
    return line if len(line) <= _MAX_LENGTH else line[:_MAX_LENGTH] + "…"


def to_line(text: str) -> str:
    """Return `text` with spaces for line breaks and for what controls a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def _head(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_CARD).decode("utf-8", "ignore")
