"""Reading of a file of API keys.

A line has the form `KEY NAME max_requests=8 requests_per_minute=60 priority=-1`; all but the key is
optional.  Empty lines and lines that begin with `#` are skipped.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindspore_serving.errors import InvalidInputs, StartError, reason
from mindspore_serving.frontends.keys import ApiKey

MIN_LENGTH = 8  # characters of a key
_MIN = {"max_requests": 1, "requests_per_minute": 1, "priority": -(2**31)}


def read_keys(path: str | os.PathLike[str]) -> tuple[ApiKey, ...]:
    """Read the keys in `path`.

    Raises StartError if the file cannot be read, or every user can read it, and InvalidInputs with
    the number of a wrong line.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(
            f"Serving Error: the file of API keys {path} cannot be read: {reason(error)}"
        ) from None
    if stat.S_ISREG(mode) and mode & 0o007:
        raise StartError(
            f"Serving Error: every user can read the API keys in {path}: run chmod o= {path}"
        )
    keys = tuple(_keys_of(text, str(path)))
    if not keys:
        raise InvalidInputs(f"there is no API key in {path}, expected one in each line")
    return keys


def _keys_of(text: str, path: str) -> Iterator[ApiKey]:
    seen: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{path}, line {number}"
        secret = words.pop(0)
        name = words.pop(0) if words and "=" not in words[0] else f"line {number}"
        if not is_key(secret) or secret in seen:
            problem = "is repeated" if secret in seen else f"should have {EXPECTED}"
            raise InvalidInputs(f"{where}: the API key {problem}")
        seen.add(secret)
        limits: dict[str, Any] = dict(_limit_of(word, where) for word in words)
        yield ApiKey(secret, name, **limits)


def _limit_of(word: str, where: str) -> tuple[str, int]:
    name, _, value = word.partition("=")
    try:
        number = int(value)
    except ValueError:
        number = None
    if name not in _MIN or number is None or not _MIN[name] <= number < 2**31:
        accepted = ", ".join(f"{limit}=N" for limit in _MIN)
        shown = repr(word) if name in _MIN else "a word"  # not shown: it may be a key
        raise InvalidInputs(f"{where}: {shown} is not one of {accepted}")
    return name, number


EXPECTED = f"at least {MIN_LENGTH} printable ASCII characters without spaces"


def is_key(text: str) -> bool:
    """Return whether `text` is valid as a key, see EXPECTED."""
    has_space = not text.isprintable() or " " in text
    return len(text) >= MIN_LENGTH and text.isascii() and not has_space
