"""The messages that docs/errors.md explains are messages of the code."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.rooms import TOP, sources

PAGE = TOP / "docs" / "errors.md"
# Codes of protocols, texts of the system, and texts that the code joins from parts.
COMPOSED = frozenset(
    {
        "Address already in use",
        "Call Function '…' Failed",
        "context_length_exceeded",
        "expected one of system, user, assistant, tool",
        "is not known: did you mean …?",
        "model_not_found",
    }
)


def messages() -> Iterator[str]:
    """Iterate over the messages in the first column of the page's tables."""
    for line in PAGE.read_text().splitlines():
        if line.startswith("| ") and not line.startswith("| message"):
            yield from re.findall(r"`([^`]+)`", line.split(" | ")[0])


@cache
def texts() -> tuple[str, ...]:
    """Texts of the code; f-strings have … in place of values."""
    found = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [getattr(part, "value", "…") for part in node.values]
                found.append("".join(p if isinstance(p, str) else "…" for p in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return tuple(found)


@pytest.mark.parametrize("message", sorted(set(messages()) - COMPOSED))
def test_a_message_of_the_page_is_in_the_code(message: str) -> None:
    pieces = [piece.strip(" ;,'") for piece in message.split("…")]
    for piece in filter(None, pieces):
        assert any(piece in text for text in texts()), piece
