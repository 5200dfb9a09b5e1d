"""A server over a model of the test's own, with the routes of Gemini's protocol."""

from collections.abc import Iterator
from typing import Any

import pytest
from google import genai
from msgspec.structs import replace

from tests.frontends.mounting import gemini_routes, openai_routes
from tests.frontends.openai.serving import Web, serving
from tests.waiting import PATIENCE


def mount(state: Any) -> list[Any]:
    return [*gemini_routes(state), *openai_routes(state)]


@pytest.fixture(scope="module")
def running() -> Iterator[Web]:
    with serving(mount) as found:
        yield found


@pytest.fixture
def web(running: Web) -> Web:
    running.control.card = replace(
        running.control.card, tool_format="hermes", reasoning_format="think", takes_images=False
    )
    running.inference.calls.clear()
    return running


def client_of(web: Web, key: str = "none", **options: Any) -> genai.Client:
    options |= {"base_url": f"http://127.0.0.1:{web.port}", "timeout": int(PATIENCE * 1000)}
    return genai.Client(api_key=key, http_options=options)


@pytest.fixture
def client(web: Web) -> Iterator[genai.Client]:
    with client_of(web) as found:
        yield found
