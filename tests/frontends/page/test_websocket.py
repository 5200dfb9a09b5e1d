"""WebSockets of pages in Chromium: those of the server, with a key, and those of another site."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from mindspore_serving.frontends.openai.realtime import REALTIME
from mindspore_serving.frontends.origins import OriginPolicy
from tests.frontends.page.browser import Browser
from tests.frontends.websocket.serving import echoing

pytestmark = pytest.mark.e2e
KEY = "a-key-that-is-long-enough"
ECHO = """
new Promise((done) => {
  const socket = new WebSocket(%s, ["realtime", "openai-insecure-api-key." + %s]);
  socket.onopen = () => socket.send("hello");
  socket.onmessage = (event) => { done(socket.protocol + " " + event.data); socket.close(); };
  socket.onerror = () => done("refused");
})
"""


@pytest.fixture
def web(background: Any) -> Iterator[Any]:
    origins = OriginPolicy("127.0.0.1")
    with closing(echoing(background, api_keys=[KEY], origins=origins)) as running:
        yield running


def test_a_page_of_the_server_opens_a_websocket_with_a_key(chromium: Browser, web: Any) -> None:
    url = f"ws://127.0.0.1:{web.port}{REALTIME}"
    chromium.forget()
    chromium.open(f"http://127.0.0.1:{web.port}/livez")
    assert chromium.evaluate(ECHO % (json.dumps(url), json.dumps(KEY))) == "realtime hello"
    assert chromium.evaluate(ECHO % (json.dumps(url), json.dumps("wrong"))) == "refused"
    chromium.open(f"http://localhost:{web.port}/livez")  # the same server, as another site
    assert chromium.evaluate(ECHO % (json.dumps(url), json.dumps(KEY))) == "refused"
    chromium.excuse()
