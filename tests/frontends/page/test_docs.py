"""The page /docs in a real Chromium: it shows what is served, and sends it."""

import json

import httpx
import pytest

from tests.cli.talking import Talking
from tests.frontends.page.browser import Browser
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
OPEN = "details.operation:not([hidden])"


@pytest.fixture
def docs(browser: Browser, server: Talking) -> Browser:
    browser.open(f"{server.url}/docs")
    browser.until("document.querySelector('.operation')")
    return browser


def find(docs: Browser, text: str) -> None:
    docs.click("#find")
    docs.type(text)
    docs.until(f"document.querySelectorAll('{OPEN}').length === 1")
    docs.click(f"{OPEN} > summary")
    docs.until(f"document.querySelector('{OPEN} form')")


def test_a_request_is_sent_as_shown(docs: Browser) -> None:
    find(docs, "/v1/chat/completions")
    assert "max_tokens" in docs.text(f"{OPEN} .fields")
    assert "v1/chat/completions -H" in docs.text(f"{OPEN} form pre")
    docs.click(f"{OPEN} form button")
    docs.until(f"document.querySelector('{OPEN} .answer').textContent.startsWith('200,')")
    assert '"object": "chat.completion"' in docs.text(f"{OPEN} .answer")


def test_the_routes_of_openai_come_first_where_a_language_model_is_served(docs: Browser) -> None:
    assert docs.text("main > section h2") == "OpenAI"
    assert docs.text("main > section .operation code") == "/v1/chat/completions"


def test_classic_routes_come_first_without_a_language_model(
    browser: Browser, server: Talking
) -> None:
    document = httpx.get(f"{server.url}/openapi.json", timeout=PATIENCE).json()
    del document["paths"]["/v1/chat/completions"]
    browser.answer("/openapi.json", 200, json.dumps(document))
    browser.open(f"{server.url}/docs")
    browser.until("document.querySelector('.operation')")
    assert browser.text("main > section h2") == "RESTful"


def test_everything_comes_from_the_server_itself(docs: Browser, server: Talking) -> None:
    find(docs, "get /readyz/{servable}")
    urls = {one["url"] for one in docs.requests}
    assert {url for url in urls if not url.startswith(server.url)} == set()


def test_an_error_of_the_server_is_shown(browser: Browser, server: Talking) -> None:
    browser.answer("/openapi.json", 503, '{"error": "not yet"}')
    browser.open(f"{server.url}/docs")
    browser.until("document.getElementById('state').textContent === 'not yet'")
    eventually(lambda: browser.evaluate("true") and browser.complaints)  # it logs the status
    browser.complaints.clear()
