"""A server over a model of the test's own, with the routes of Ollama's protocol."""

from collections.abc import Iterator
from typing import Any

import ollama
import pytest
from msgspec.structs import replace

from tests.frontends.mounting import ollama_routes
from tests.frontends.openai.serving import Web, serving
from tests.waiting import PATIENCE


def mount(state: Any) -> list[Any]:
    return ollama_routes(state)


@pytest.fixture
def web() -> Iterator[Web]:
    with serving(mount) as running:
        running.control.card = replace(
            running.control.card,
            tool_format="hermes",
            reasoning_format="think",
            sampling=(("top_k", 7),),
        )
        yield running


@pytest.fixture
def client(web: Web) -> Iterator[ollama.Client]:
    with ollama.Client(host=f"http://127.0.0.1:{web.port}", timeout=PATIENCE) as found:
        yield found
