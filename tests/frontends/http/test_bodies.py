"""Large bodies: they are received where they stay, past the parser, and nothing else changes."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Request
from mindspore_serving.frontends.http import body_pool
from mindspore_serving.frontends.http.body_pool import BodyPool
from mindspore_serving.frontends.http.parser import LARGE_BODY
from mindspore_serving.frontends.http.predict import Predict
from mindspore_serving.frontends.v2.fast_infer import Infer
from tests.frontends.http_serving import Web, post
from tests.waiting import PATIENCE, eventually

MAX_BODY = 4 << 20
SIZE = (1 << 20) + 12_345
assert SIZE > LARGE_BODY
# Were it parsed as HTTP anywhere, a request would be found in it.
TEXT = b'"%b"' % (b"GET /health HTTP/1.1 - " * SIZE)[: SIZE - 2]


class Roomy(Infer):
    """Answers with its body, which it has in a room."""

    declared_path = "/roomy"

    def to_request(self, body):
        assert isinstance(body, memoryview)
        self._parsed = body  # as a request of protocol v2, whose tensors are views
        return Request("s", "m", 0, "ms_json", body)

    answer, refuse, target = Predict.answer, Predict.refuse, Predict.target


def roomy(path, head, output):
    return Roomy(path, head, output) if head.target == b"/roomy" else None


@contextmanager
def serving(background, **limits) -> Iterator[Web]:
    made = Web(
        background,
        use_status_codes=True,
        limits=ServerLimits(**limits),
        max_body=MAX_BODY,
        open_other=roomy,
    )
    try:
        yield made
    finally:
        made.close()


REQUEST = post(TEXT, b"/roomy")
ANSWER = b'{"instances":[%b]}' % TEXT


def is_answered(client):
    status, _, body = client.read()
    return (status, body) == (200, ANSWER)


@pytest.mark.parametrize("cut", [1, 40, 60, 70, 1000, SIZE - 1, SIZE, SIZE + 60])
def test_a_large_body_may_come_in_any_pieces(background, cut):
    with serving(background) as web:
        client = web.connect()
        client.send(REQUEST[:cut])
        web.turn()
        client.send(REQUEST[cut:])
        assert is_answered(client)
        assert web.held == 0


def test_requests_may_follow_a_large_body_at_once(background):
    with serving(background) as web:
        small = post(b'{"instances":[7]}')
        client = web.connect().send(REQUEST + small + REQUEST + small)
        assert is_answered(client)
        assert client.read_json() == {"instances": [{"instances": [7]}]}
        assert is_answered(client)
        assert client.read_json() == {"instances": [{"instances": [7]}]}


def test_a_large_body_is_the_last_of_a_connection_that_is_to_end(background):
    with serving(background) as web:
        last = post(TEXT, b"/roomy", headers=[b"Connection: close"])
        client = web.connect().send(last + REQUEST)
        assert is_answered(client)
        assert client.is_closed()
        assert len(web.inference.asked) == 1


def test_a_chunked_body_has_no_room(background):
    with serving(background) as web:
        head = b"POST /model/add:m HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        body = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in (TEXT[:9], TEXT[9:], b""))
        assert is_answered(web.connect().send(head + body))


def test_a_disconnect_within_a_large_body_frees_its_memory(background):
    with serving(background) as web:
        client = web.connect().send(REQUEST[:-1000])
        eventually(lambda: web.held == SIZE - 1000)
        client.stream.close()
        eventually(lambda: web.held == 0)
        assert not web.inference.asked


def test_memory_of_an_answered_body_is_reused(background, uncollected, monkeypatch):
    made = []

    def make(memory, real=body_pool._Block):
        made.append(real(memory))
        return made[-1]

    monkeypatch.setattr(body_pool, "_Block", make)
    with serving(background) as web:
        for _ in range(3):  # connections that stay
            assert is_answered(web.connect().send(REQUEST))
            web.inference.calls.clear()  # which hold their requests
        assert len(web.server.shared.connections) == 3
        assert len(made) == 1


def test_a_lost_connection_leaves_no_references(background, uncollected):
    with serving(background) as web:
        client = web.connect().send(REQUEST)
        assert is_answered(client)
        (connection,) = web.server.shared.connections
        parser = weakref.ref(connection._parser)
        del connection
        client.stream.close()
        eventually(lambda: parser() is None)


def test_the_rest_of_a_refused_large_body_is_not_parsed_as_a_request(background):
    with serving(background, max_body_memory=SIZE + 1000) as web:
        first = web.connect().send(REQUEST[:-1000])
        eventually(lambda: web.held == SIZE - 1000)
        status, headers, _ = web.connect().send(REQUEST).read()
        assert (status, headers["retry-after"]) == (429, "1")
        assert is_answered(first.send(REQUEST[-1000:]))
        eventually(lambda: web.held == 0)


def test_a_large_body_that_comes_too_slowly_is_answered_408(background):
    with serving(background, body_timeout=PATIENCE) as web:
        client = web.connect().send(REQUEST[:-1])
        eventually(lambda: web.held == SIZE - 1)
        web.sweep(0, 2 * PATIENCE)
        assert client.read()[0] == 408
        eventually(lambda: web.held == 0)


def test_a_block_is_reused_when_its_last_view_is_gone():
    pool = BodyPool()
    first = pool.take(1 << 20)
    first[:3] = b"one"
    part = first[:3]
    del first
    assert bytes(pool.take(1 << 20)[:3]) == bytes(3)  # the first is in use
    pool.trim()
    del part
    found = {bytes(one[:3]) for one in [pool.take(1 << 20), pool.take(1 << 20)]}
    assert found == {b"one", bytes(3)}


def test_memory_that_is_not_used_for_two_trims_is_given_back():
    pool = BodyPool()
    pool.take(1 << 20)[:3] = b"one"
    pool.trim()
    assert bytes(pool.take(1 << 20)[:3]) == b"one"
    for _ in range(3):
        pool.trim()
    assert bytes(pool.take(1 << 20)[:3]) == bytes(3)
    assert pool._num_pooled <= 1 << 20


def test_the_pool_has_a_limit(monkeypatch):
    monkeypatch.setattr(body_pool, "MAX_POOLED", 3 << 20)
    pool = BodyPool()
    taken = [pool.take(1 << 20) for _ in range(5)]
    for one in taken:
        one[:3] = b"new"
    del one
    taken.clear()
    again = [bytes(view[:3]) for view in [pool.take(1 << 20) for _ in range(5)]]
    assert sorted(again) == [bytes(3)] * 2 + [b"new"] * 3


async def sizes(request):
    parts = [part async for part in request.stream() if part]
    return JSONResponse([len(parts), sum(map(len, parts)), b"".join(parts) == TEXT])


async def never_read(request):
    return Response(b"no", 403)


@pytest.fixture
def asgi(background) -> Iterator[Web]:
    routes = [Route("/sizes", sizes, methods=["POST"]), Route("/no", never_read, methods=["POST"])]
    made = Web(background, routes=routes, limits=ServerLimits(max_body_memory=4 << 20))
    yield made
    made.close()


@pytest.mark.parametrize("cut", [60, 1000, SIZE])
def test_an_application_gets_a_large_body_in_a_single_piece(asgi, cut):
    request = post(TEXT, b"/sizes")
    client = asgi.connect().send(request[:cut])
    asgi.turn()
    for _ in range(2):
        assert client.send(request[cut:]).read_json() == [1, SIZE, True]
        cut = 0
    eventually(lambda: asgi.held == 0)


def test_an_application_that_refuses_a_large_body_does_not_get_the_rest(asgi):
    client = asgi.connect().send(post(TEXT, b"/no")[:1000])
    assert client.read()[0] == 403
    assert asgi.held == 0


def test_a_body_that_would_take_all_memory_comes_in_parts(asgi):
    size = 5 << 20
    head = b"POST /sizes HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
    assert asgi.connect().send(head + bytes(size)).read()[0] == 429
    eventually(lambda: asgi.held == 0)


def test_a_disconnect_from_an_application_frees_the_body(asgi):
    client = asgi.connect().send(post(TEXT, b"/sizes")[:-1000])
    eventually(lambda: asgi.held == SIZE - 1000)
    client.stream.close()
    eventually(lambda: asgi.held == 0)
