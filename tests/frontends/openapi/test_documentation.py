"""The routes that the documentation names in its tables exist."""

import re
from collections.abc import Iterator

import pytest

from mindspore_serving.frontends.protocols import PATHS
from tests.e2e.harness import ROOT

PAGES = (
    "anthropic",
    "gemini",
    "language_models",
    "llamacpp",
    "llm_serving",
    "ollama",
    "openai",
    "ranking",
    "tgi",
)
NAMED = re.compile(r"`(?:(GET|POST|DELETE) )?(/[\w/]*)`")


def routes_of(page: str) -> Iterator[tuple[str, str]]:
    """Verb, which may be left out, and path of what the first cells of tables name."""
    for line in (ROOT / "docs" / f"{page}.md").read_text().splitlines():
        if line.startswith("|"):
            for cell in line.split("|")[1:3]:
                yield from NAMED.findall(cell)


@pytest.mark.parametrize("page", PAGES)
def test_a_route_of_a_table_is_a_row(page: str) -> None:
    found = [*routes_of(page)]
    assert found
    for verb, path in found:
        verbs = {row.verb for row in PATHS.find(path).rows}
        assert verbs, path
        assert not verb or verb in verbs, (verb, path)
