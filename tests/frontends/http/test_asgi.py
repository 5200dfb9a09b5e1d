"""What an ASGI application says, byte by byte on the wire, and what it is told."""

import json

import pytest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.frontends.http_serving import GET, Web, post
from tests.waiting import eventually


async def pieces(request):
    async def made():
        for piece in (b"one", b"", b"two"):
            yield piece

    return StreamingResponse(made(), media_type="text/plain")


async def echo(request):
    return Response(await request.body())


async def counted(request):
    """How many parts the body came in."""
    parts = [part async for part in request.stream()]
    return Response(b"%d" % sum(map(len, parts)))


async def early(request):
    return Response(b"no", 403)


async def empty(request):
    return Response(status_code=204)


async def scope(request):
    names = ("method", "path", "raw_path", "query_string", "http_version", "scheme", "client")
    found = {name: request.scope[name] for name in names}
    found["headers"] = [
        [str(part, "latin-1") for part in pair] for pair in request.scope["headers"]
    ]
    return Response(json.dumps(found, default=bytes.decode))


async def broken(request):
    raise ZeroDivisionError("a bug of ours")


async def cut(request):
    async def made():
        yield b"one"
        raise ZeroDivisionError("a bug of ours")

    return StreamingResponse(made())


class Raw:
    """An ASGI application that sends `messages`."""

    def __init__(self, *messages):
        self.messages = messages

    async def __call__(self, scope, receive, send):
        for message in self.messages:
            await send(message)


def start(*headers, status=200):
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(data=b"", more=False):
    return {"type": "http.response.body", "body": data, "more_body": more}


LENGTH = (b"content-length", b"3")
INJECTED = (b"x", b"a\r\nset-cookie: b")
ROUTES = [
    Route("/pieces", pieces),
    Route("/echo", echo, methods=["POST"]),
    Route("/counted", counted, methods=["POST"]),
    Route("/early", early, methods=["POST"]),
    Route("/empty", empty),
    Route("/scope/{path:path}", scope, methods=["GET", "PUT"]),
    Route("/broken", broken),
    Route("/cut", cut),
    Route("/short", Raw(start(LENGTH), body(b"ab"))),
    Route("/long", Raw(start(LENGTH), body(b"abc", True), body(b"d"))),
    Route("/silent", Raw()),
    Route("/headless", Raw(start(LENGTH, INJECTED), body(b"abc"))),
]


@pytest.fixture
def web(background):
    made = Web(background, routes=ROUTES)
    yield made
    made.close()


def get(path, version=b"1.1", verb=b"GET", headers=b""):
    return b"%b %b HTTP/%b\r\nHost: x\r\n%b\r\n" % (verb, path, version, headers)


def rest(client):
    """All that comes until the server closes."""
    return b"".join(iter(lambda: client.stream.recv(1 << 16), b""))


# --- answers ------------------------------------------------------------------------------------


def test_an_answer_of_unknown_length_comes_in_chunks(web):
    client = web.connect().send(get(b"/pieces", headers=b"Connection: close\r\n"))
    head, _, chunks = rest(client).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert chunks == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


def test_http_1_0_gets_no_chunks_but_a_closed_connection(web):
    head, _, data = rest(web.connect().send(get(b"/pieces", b"1.0"))).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert data == b"onetwo"


@pytest.mark.parametrize("path", [b"/pieces", b"/health"])
def test_head_gets_the_head_alone(web, path):
    client = web.connect().send(get(path, verb=b"HEAD") + GET)
    status, headers, _ = read_head(client)
    assert (status, "transfer-encoding" in headers) == (200, False)
    assert client.read()[2] == b"ready"


def read_head(client):
    """The next answer, whose body is known to be empty."""
    while b"\r\n\r\n" not in client._rest:
        client._receive()
    head, client._rest = client._rest.split(b"\r\n\r\n", 1)
    line, *lines = head.decode().split("\r\n")
    return int(line.split()[1]), dict(field.lower().split(": ", 1) for field in lines), b""


def test_an_answer_without_content_has_no_body_and_no_length(web):
    client = web.connect().send(get(b"/empty") + GET)
    status, headers, _ = client.read()
    assert (status, [*headers]) == (204, ["x-request-id"])
    assert client.read()[2] == b"ready"


# --- requests -----------------------------------------------------------------------------------


def test_the_scope_has_the_fields_of_the_request(web):
    data = get(b"/scope/a%20b?c=d%20e", verb=b"PUT", headers=b"X-A: b\r\nX-A: C\r\n")
    client = web.connect()
    found = json.loads(client.send(data).read()[2])
    assert found == {
        "method": "PUT",
        "path": "/scope/a b",
        "raw_path": "/scope/a%20b",
        "query_string": "c=d%20e",
        "http_version": "1.1",
        "scheme": "http",
        "client": list(client.stream.getsockname()),
        "headers": [["host", "x"], ["x-a", "b"], ["x-a", "C"]],
    }


def test_a_large_body_reaches_the_application_in_parts_and_whole(web):
    data = bytes(range(256)) * 40_000
    client = web.connect()
    client.stream.sendall(post(data, b"/counted"))
    assert client.read()[2] == b"%d" % len(data)
    client.stream.sendall(post(data[:100_000], b"/echo"))
    assert client.read()[2] == data[:100_000]


def test_100_continue_is_sent_when_the_application_reads_the_body(web):
    head, data = post(b"abc", b"/echo", [b"Expect: 100-continue"]).split(b"\r\n\r\n")
    client = web.connect().send(head + b"\r\n\r\n")
    assert client.read() == (100, {}, b"")
    assert client.send(data).read()[2] == b"abc"


def test_a_body_that_the_application_does_not_want_is_not_asked_for(web):
    head, _ = post(b"abc", b"/early", [b"Expect: 100-continue"]).split(b"\r\n\r\n")
    status, headers, _ = web.connect().send(head + b"\r\n\r\n").read()
    assert (status, headers["connection"]) == (403, "close")


def test_an_answer_before_the_end_of_the_body_is_the_last(web):
    client = web.connect().send(post(b"x" * 1_000_000, b"/early")[:1000])
    status, headers, _ = client.read()
    assert (status, headers["connection"]) == (403, "close")
    assert client.is_closed()


def test_a_body_that_nobody_read_does_not_stop_the_connection(web):
    """It has come in full, and more than the application may leave unread."""
    client = web.connect()
    client.stream.sendall(post(b"x" * 60_000, b"/early"))
    assert client.read()[0] == 403
    client = web.connect().send(post(b"x", b"/early") + GET)
    assert client.read()[0] == 403
    assert client.read()[2] == b"ready"


def test_the_application_learns_that_its_client_has_left(web):
    left = []

    async def application(scope, receive, send):
        while (await receive())["type"] != "http.disconnect":
            pass
        left.append(True)

    web.server._app = application
    client = web.connect().send(post(path=b"/")[:-3])
    web.turn()
    client.stream.close()
    eventually(lambda: left == [True])


# --- applications that are wrong ----------------------------------------------------------------


def test_an_application_that_raises_is_an_internal_error(web, capsys):
    client = web.connect().send(get(b"/broken") + GET)
    assert client.read()[0] == 500
    assert client.read()[2] == b"ready"
    assert "ZeroDivisionError: a bug of ours" in capsys.readouterr().err


@pytest.mark.parametrize("path", [b"/silent", b"/headless"])
def test_an_application_that_gives_no_answer_is_an_internal_error(web, path, capsys):
    client = web.connect().send(get(path))
    status, headers, text = client.read()
    assert (status, headers["connection"], text) == (500, "close", b"Internal Server Error")
    assert client.is_closed()


@pytest.mark.parametrize("path", [b"/cut", b"/short", b"/long"])
def test_an_answer_that_breaks_off_does_not_look_whole(web, path, capsys):
    data = rest(web.connect().send(get(path) + GET))
    assert data.startswith(b"HTTP/1.1 200")
    assert not data.endswith(b"0\r\n\r\n")
    assert b"ready" not in data
    assert b"abcd" not in data
