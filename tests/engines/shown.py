"""The commands that docs/engines.md shows."""

import shlex

from tests.pages import blocks

PAGE = "docs/engines.md"


def commands(name: str, page: str = PAGE) -> list[list[str]]:
    """The arguments of each `mindspore-serving NAME`."""
    text = "".join(block.text for block in blocks(page) if block.language in ("", "sh"))
    found = [shlex.split(line) for line in text.replace("\\\n", " ").splitlines()]
    return [words[2:] for words in found if words[:2] == ["mindspore-serving", name]]


def in_place(words: list[str], places: dict[str, str]) -> list[str]:
    """`words` with the texts of `places` in place of what the page has."""
    for shown, real in places.items():
        words = [word.replace(shown, real) for word in words]
    return words
