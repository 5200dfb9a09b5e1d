"""A server over a model of the test's own, with the routes that Anthropic's clients ask."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from msgspec.structs import replace

from tests.frontends.mounting import anthropic_routes, openai_routes
from tests.frontends.openai.serving import Web, serving
from tests.waiting import PATIENCE


def mount(state: Any) -> list[Any]:
    return [*anthropic_routes(state), *openai_routes(state)]


@pytest.fixture
def web() -> Iterator[Web]:
    with serving(mount) as running:
        running.control.card = replace(
            running.control.card, tool_format="hermes", reasoning_format="think"
        )
        yield running


@pytest.fixture
def client(web: Web) -> Iterator[anthropic.Anthropic]:
    base = web.url.removesuffix("/v1")
    with anthropic.Anthropic(
        base_url=base, api_key="none", max_retries=0, timeout=PATIENCE
    ) as found:
        yield found
