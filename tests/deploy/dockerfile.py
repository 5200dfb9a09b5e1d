"""Reads a Dockerfile and its .dockerignore.  Knows what is written, and builds nothing."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::([-+])([^}]*))?\})")


@dataclass(frozen=True, slots=True)
class Instruction:
    """`FLAGS` are those before the first word, as in COPY --from=build."""

    name: str
    flags: Mapping[str, str]
    text: str

    def words(self) -> list[str]:
        """Of the JSON form, or else as a shell would split them."""
        return list(json.loads(self.text)) if self.is_json else shlex.split(self.text)

    @property
    def is_json(self) -> bool:
        return self.text.startswith("[")


def parse(text: str) -> list[Instruction]:
    """All instructions.  ValueError for what this does not read (here-documents)."""
    return [_instruction(line) for line in _lines(text)]


def expand(text: str, values: Mapping[str, str]) -> str:
    """With variables filled in, as a builder does in every instruction but RUN."""

    def value(found: re.Match[str]) -> str:
        name, sign, other = found[1] or found[2], found[3], found[4]
        known = values.get(name, "")
        if sign == "-":
            return known or other
        return (other if known else "") if sign == "+" else known

    return _VARIABLE.sub(value, text)


def _lines(text: str) -> Iterator[str]:
    """Without comments; lines that end with a backslash are joined with the next."""
    begun = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or not (begun or line.strip()):
            continue
        if line.endswith("\\"):
            begun += line[:-1]
            continue
        yield (begun + line).strip()
        begun = ""


def _instruction(line: str) -> Instruction:
    if "<<" in line:
        raise ValueError(f"a here-document is not read: {line}")
    name, _, rest = line.partition(" ")
    flags = {}
    while found := re.match(r"--([\w-]+)(?:=(\S+))?\s+", rest):
        flags[found[1]] = found[2] or ""
        rest = rest[found.end() :]
    return Instruction(name.upper(), flags, rest.strip())


class Ignored:
    """What a .dockerignore leaves out: of the patterns that match a path, or a directory that it
    is in, the last decides."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self._patterns = [
            (not line.startswith("!"), _regular(line.removeprefix("!").strip("/")))
            for line in lines
            if line and not line.startswith("#")
        ]

    def __call__(self, path: Path) -> bool:
        """Whether `path`, relative to the context, is left out."""
        places = [str(path), *(str(parent) for parent in path.parents)]
        is_out = False
        for leaves_out, pattern in self._patterns:
            if any(pattern.fullmatch(place) for place in places):
                is_out = leaves_out
        return is_out


def _regular(pattern: str) -> re.Pattern[str]:
    escaped = re.escape(pattern).replace(r"\?", "[^/]")
    return re.compile(
        escaped.replace(r"\*\*/", "(?:.*/)?").replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
    )
