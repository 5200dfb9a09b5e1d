"""POST /mcp where the SDK is not installed."""

import json
import sys

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.frontends import mcp
from mindspore_serving.frontends.routes import bind
from tests.frontends.http_serving import MAX_BODY, Web


class Models:
    limits = LanguageLimits()


class State:
    models, max_body = Models(), MAX_BODY


def test_a_server_without_the_sdk_names_the_package(background, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    for name in [name for name in sys.modules if name.startswith("mcp.")]:
        monkeypatch.delitem(sys.modules, name)
    web = Web(background, routes=bind(mcp.ROUTES, State()))
    try:
        head = b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
        status, _, body = web.connect().send(head).read()
    finally:
        web.close()
    assert status == 501
    problem = json.loads(body)["error"]["message"]
    assert problem.startswith("POST /mcp needs mcp")
    assert "install it with: pip install" in problem
