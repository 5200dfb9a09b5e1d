"""Web pages of other sites, and names that are not the server's: what a browser may not do."""

import json
from contextlib import contextmanager

import pytest
from starlette.responses import Response
from starlette.routing import Route

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.frontends.origins import OriginPolicy
from mindspore_serving.server.front_ends import to_origins
from tests.frontends.http_serving import BODY, Web, post

OWN = b"127.0.0.1:1500"
CLASSIC, CHAT = b"/model/add:m", b"/v1/chat/completions"
EVIL = b"Origin: https://evil.example"


@contextmanager
def serving(background, host="127.0.0.1", **rules):
    async def answer(request):
        await request.body()
        return Response()

    routes = [Route(CHAT.decode(), answer, methods=["POST"])]
    web = Web(background, routes=routes, origins=OriginPolicy(host, **rules))
    try:
        yield web
    finally:
        web.close()


def ask(web, *headers, path=CLASSIC, host=OWN):
    request = post(BODY, path, headers).replace(b"Host: x", b"Host: " + host)
    return web.connect().send(request).read()


@pytest.mark.parametrize("path", [CLASSIC, CHAT])
@pytest.mark.parametrize(
    "headers",
    [
        [EVIL],
        [b"Origin: null"],
        [b"Origin: http://127.0.0.1:9999"],
        [EVIL, b"Sec-Fetch-Site: cross-site"],
        [b"Sec-Fetch-Site: cross-site"],
        [b"Sec-Fetch-Site: same-site"],
    ],
    ids=repr,
)
def test_a_web_page_of_another_site_may_not_ask(background, path, headers):
    with serving(background) as web:
        status, _, body = ask(web, *headers, path=path)
        assert status == 403
        text = json.loads(body)
        text = text["error_msg"] if path == CLASSIC else text["error"]["message"]
        assert "which is another site" in text
        assert web.inference.asked == []


@pytest.mark.parametrize("path", [CLASSIC, CHAT])
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [b"Origin: http://127.0.0.1:1500"],
        [b"Origin: http://127.0.0.1:1500", b"Sec-Fetch-Site: same-origin"],
        [b"Sec-Fetch-Site: none"],
    ],
    ids=repr,
)
def test_the_servers_own_page_and_other_clients_may(background, path, headers):
    with serving(background) as web:
        assert ask(web, *headers, path=path)[0] == 200


@pytest.mark.parametrize("path", [CLASSIC, CHAT])
def test_pages_that_the_operator_allows_may_and_are_told_so(background, path):
    with serving(background, allow_origins=["https://friend.example"]) as web:
        status, headers, _ = ask(web, b"Origin: https://friend.example", path=path)
        assert status == 200
        assert headers["access-control-allow-origin"] == "https://friend.example"
        assert ask(web, EVIL, path=path)[0] == 403
        preflight = (
            b"OPTIONS %b HTTP/1.1\r\nHost: %b\r\nOrigin: https://friend.example\r\n"
            b"Access-Control-Request-Method: POST\r\n\r\n" % (path, OWN)
        )
        assert web.connect().send(preflight).read()[0] == 200


@pytest.mark.parametrize(
    "given",
    [
        "*",
        "https://Friend.example",
        "http://localhost:3000",
        "http://[::1]:80",
        "app-1+x://abc.d_e",
    ],
)
def test_origins_of_browsers_are_accepted(given):
    assert to_origins([given]) == to_origins(given) == (given.lower(),)


@pytest.mark.parametrize(
    "given",
    [
        "foo bar",
        "friend.example",
        "null",
        "https://",
        "https://a.example/",
        "https://a.example:",
    ]
    + [
        "https://*.example",
        "https://a.example\n",
        "https://a b",
        "https://a@b",
        "https://a:123456",
    ],
)
def test_invalid_origins_are_refused(given):
    with pytest.raises(InvalidInputs, match=r"expected '\*' or SCHEME://HOST"):
        to_origins(["https://friend.example", given])


@pytest.mark.parametrize("path", [CLASSIC, CHAT, b"/servables"])
@pytest.mark.parametrize(
    "host",
    [
        b"evil.example",
        b"evil.example:1500",
        b"localhost.evil.example",
        b"[::1].evil.example",
        b"[::1].evil.example:1500",
        b"[::1]evil.example",
        b"[::1]:1500.evil.example",
        b"[::1]:evil.example",
        b"[::1",
        b"::1]",
        b"[::1%evil.example]",
        b"[127.0.0.1]",
        b"[localhost]",
        b"localhost:evil.example",
        b"localhost:1500:evil.example",
        b"127.0.0.1:evil.example",
        b"evil.example@localhost",
        b"localhost@evil.example",
        b"localhost/evil.example",
        b"localhost..",
        b"localhost evil.example",
        b"localhost\xa0",
        b"",
        b".",
        b":1500",
    ],
)
def test_a_name_that_is_pointed_at_this_machine_is_refused(background, path, host):
    with serving(background) as web:
        status, _, body = ask(web, path=path, host=host)
        assert status == 403
        assert b"the host name" in body


@pytest.mark.parametrize(
    "host",
    [
        *(OWN, b"localhost", b"LOCALHOST:1500", b"localhost.", b"[::1]", b"[::1]:1500"),
        *(b"[::ffff:127.0.0.1]", b"10.0.0.7", b"serving.example", b"serving.example.:80"),
    ],
)
def test_addresses_and_names_that_are_its_own_are_accepted(background, host):
    with serving(background, allowed_hosts=["serving.example"]) as web:
        assert ask(web, host=host)[0] == 200


def test_a_server_of_a_network_has_any_name_unless_some_are_given(background):
    with serving(background, host="0.0.0.0") as web:
        assert ask(web, host=b"serving.example")[0] == 200
    with serving(background, host="0.0.0.0", allowed_hosts=["serving.example"]) as web:
        assert ask(web, host=b"serving.example")[0] == 200
        assert ask(web, host=b"other.example")[0] == 403


def test_text_that_any_page_can_send_generates_nothing(background):
    with serving(background) as web:
        plain = b"Content-Type: text/plain;charset=UTF-8"
        for path in (CHAT, b"/v1/messages", b"/api/chat", b"/embed_sparse", b"/rerank", b"/score"):
            assert ask(web, plain, path=path)[0] == 415
        assert ask(web, plain, path=CLASSIC)[0] == 200
        assert ask(web, b"Content-Type: application/json", path=CHAT)[0] == 200


def test_health_is_answered_under_any_name(background):
    with serving(background) as web:
        request = b"GET /livez HTTP/1.1\r\nHost: 7.probe.example\r\n\r\n"
        assert web.connect().send(request).read()[0] == 200
