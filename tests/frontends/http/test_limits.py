"""What one client, or many, can take of an HTTP server: connections, descriptors, memory, time."""

import asyncio
import resource
import select
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply
from mindspore_serving.errors import InvalidField
from tests.frontends.http_serving import BODY, GET, MAX_BODY, Web, post
from tests.waiting import PATIENCE, eventually

POST = b"POST /model/add:m HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
MEGABYTE = 1 << 20
KEY = "a-key-that-is-long-enough"


@contextmanager
def serving(background, *, routes=(), api_keys=(), max_body=MAX_BODY, **limits) -> Iterator[Web]:
    made = Web(
        background,
        use_status_codes=True,
        limits=ServerLimits(**limits),
        routes=routes,
        api_keys=api_keys,
        max_body=max_body,
    )
    try:
        yield made
    finally:
        made.close()


def test_a_limit_out_of_range_is_refused_by_its_name():
    with pytest.raises(InvalidField, match="head_timeout is 0, expected a number over 0"):
        ServerLimits(head_timeout=0)


# --- connections --------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_address"])
def test_a_connection_over_the_limit_gets_503_until_another_ends(background, limit):
    with serving(background, **{limit: 2}) as web:
        first, second = web.connect().send(GET), web.connect().send(GET)
        assert (first.read()[0], second.read()[0]) == (200, 200)
        status, headers, _ = web.connect().read()
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert first.send(GET).read()[0] == 200
        first.stream.close()
        eventually(lambda: len(web.server.shared.connections) == 1)
        assert web.connect().send(GET).read()[0] == 200


def test_connections_wait_for_free_descriptors(web):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as stream, socket.socket() as held:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (held.fileno() + 1, hard))
            with pytest.raises(OSError, match="Too many open files"), socket.socket():
                pass
            stream.connect(("127.0.0.1", web.port))
            stream.sendall(GET)
            web.turn()
            assert not web.server.shared.connections
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        stream.settimeout(PATIENCE)
        assert stream.recv(1 << 16).startswith(b"HTTP/1.1 200")


# --- memory -------------------------------------------------------------------------------------


def test_bodies_over_the_memory_limit_get_429_until_memory_is_free(background):
    part = b"x" * (700 << 10)
    head = POST + b"Content-Length: %d\r\n\r\n" % MEGABYTE
    with serving(background, max_body=MEGABYTE, max_body_memory=MEGABYTE) as web:
        first = web.connect().send(head + part)
        eventually(lambda: web.held > MEGABYTE // 2)
        status, headers, _ = web.connect().send(head + part).read()
        assert (status, headers["retry-after"]) == (429, "1")
        first.send(b"x" * (MEGABYTE - len(part)))
        assert first.read()[0] == 200
        eventually(lambda: web.held == 0)
        whole = head + b"x" * MEGABYTE
        assert web.connect().send(whole).read()[0] == 200


def test_bodies_of_an_address_leave_memory_to_other_addresses(background):
    head = POST + b"Content-Length: %d\r\n\r\n" % MEGABYTE
    part = b"x" * (900 << 10)
    with serving(background, max_body=MEGABYTE, max_body_memory=4 * MEGABYTE) as web:
        where, streams = ("127.0.0.1", web.port), []
        for _ in range(6):
            stream = socket.create_connection(where, PATIENCE, source_address=("127.0.0.2", 0))
            stream.sendall(head + part)
            streams.append(stream)
        refused, _, _ = select.select(streams, [], [], PATIENCE)  # whichever was read last
        assert refused[0].recv(12) == b"HTTP/1.1 429"
        assert web.connect().send(head + b"x" * MEGABYTE).read()[0] == 200
        for stream in streams:
            stream.close()


def test_unread_answers_are_aborted_for_the_address_with_the_largest_share(background):
    route = Route("/large", lambda _: Response(bytes(32 * MEGABYTE)))
    with serving(background, routes=[route], max_unsent_memory=80 * MEGABYTE) as web:
        web.connect().send(GET).read()
        streams = []
        for source in ("127.0.0.1", "127.0.0.2", "127.0.0.2"):
            where = ("127.0.0.1", web.port)
            stream = socket.create_connection(where, PATIENCE, source_address=(source, 0))
            stream.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            assert stream.recv(15) == b"HTTP/1.1 200 OK"
            streams.append(stream)
        eventually(lambda: len(web.server.shared.connections) == 3)
        left = {one.transport.get_extra_info("peername") for one in web.server.shared.connections}
        assert streams[0].getsockname() in left  # the oldest of all
        assert streams[1].getsockname() not in left
        for stream in streams:
            stream.close()


def test_of_answers_that_clients_do_not_take_the_oldest_are_cut_off(background):
    size = 32 * MEGABYTE
    route = Route("/large", lambda _: Response(bytes(size)))
    with serving(background, routes=[route], max_unsent_memory=40 * MEGABYTE) as web:
        web.connect().send(GET).read()  # its connection waits for the next request
        streams = []
        for _ in range(3):
            stream = socket.create_connection(("127.0.0.1", web.port), PATIENCE)
            stream.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            assert stream.recv(15) == b"HTTP/1.1 200 OK"
            streams.append(stream)
        eventually(lambda: len(web.server.shared.connections) == 2)
        received = 0
        while received < size:
            received += len(part := streams[-1].recv(MEGABYTE))
            assert part, "the newest answer is cut off as well"
        for stream in streams:
            stream.close()


@pytest.mark.parametrize("path", [b"/model/add:m", b"/my-model/add:m"])
def test_a_client_that_leaves_gives_the_memory_of_its_body_back(background, path):
    with serving(background, max_body=MEGABYTE) as web:
        head = POST.replace(b"/model/add:m", path) + b"Content-Length: %d\r\n\r\n" % MEGABYTE
        client = web.connect().send(head + b"x" * (700 << 10))
        eventually(lambda: web.held > MEGABYTE // 2)
        client.stream.close()
        eventually(lambda: web.held == 0)


@pytest.mark.parametrize("path", [b"/model/add:m", b"/v1/chat/completions", b"/generate"])
def test_the_body_of_a_client_without_a_key_is_neither_awaited_nor_held(background, path):
    async def never(request):
        raise AssertionError("the route was asked")

    routes = [Route(path.decode(), never, methods=["POST"])]
    with serving(background, api_keys=[KEY], routes=routes, max_body=MEGABYTE) as web:
        head = POST.replace(b"/model/add:m", path) + b"Content-Length: %d\r\n\r\n" % MEGABYTE
        client = web.connect().send(head)
        assert client.read()[0] == 401
        client.stream.sendall(b"x" * (700 << 10))
        web.turn()
        assert web.held == 0
        assert client.is_closed()


# --- time ---------------------------------------------------------------------------------------


def test_a_call_that_takes_too_long_is_cancelled_and_answered_504(background):
    with serving(background, request_timeout=0.2) as web:
        web.inference.holds = True
        client = web.connect().send(post())
        status, _, body = client.read()
        assert status == 504
        assert b"no answer within 0.2 seconds" in body
        assert web.inference.asked[0].is_cancelled


def test_a_route_that_takes_too_long_is_left_and_answered_504(background):
    ended = []

    async def slow(request):
        try:
            while not await request.is_disconnected():
                await asyncio.sleep(0.01)
        finally:
            ended.append(True)
        return Response()

    with serving(background, request_timeout=0.2, routes=[Route("/slow", slow)]) as web:
        status, _, body = web.connect().send(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").read()
        assert status == 504
        assert b"no answer within 0.2 seconds" in body
        eventually(lambda: ended)


def test_a_stream_that_takes_too_long_is_cut_off(background):
    ended = []

    async def forever():
        try:
            while True:
                yield b"x"
                await asyncio.sleep(0.01)
        finally:
            ended.append(True)

    async def stream(request):
        return StreamingResponse(forever())

    for seconds in (0.3, 3, 30):  # a busy machine may not come to the first piece in time
        with serving(background, request_timeout=seconds, routes=[Route("/", stream)]) as web:
            client = web.connect().send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while data := client.stream.recv(1 << 16):
                answer += data
            eventually(lambda: ended)
        if answer.startswith(b"HTTP/1.1 200"):
            break
    assert answer.startswith(b"HTTP/1.1 200")
    assert not answer.endswith(b"0\r\n\r\n")  # the client sees that it is not complete


def test_a_stream_of_which_no_more_comes_ends_with_an_error(background):
    with serving(background, stream_idle_timeout=0.05) as web:
        web.control.streams = lambda servable, version, method: method == "count" or None
        web.inference.holds = True
        client = web.connect().send(post(path=b"/model/add:count_stream"))
        web.inference.wait_for(1).reply(Reply([b'{"y":1}'], is_last=False))
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            answer += client.stream.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'{"y":1}' in answer
        assert b"no more of it came within 0.05 seconds" in answer
        eventually(lambda: web.inference.num_cancelled == 1)


def test_the_time_of_a_request_is_its_own_and_not_that_of_its_connection(background):
    for seconds in (0.5, 5):  # a busy machine may not answer each in half a second
        with serving(background, request_timeout=seconds) as web:
            client = web.connect()
            end = time.monotonic() + 1.2 * seconds
            while (status := client.send(post()).read()[0]) == 200 and time.monotonic() < end:
                pass
        if status == 200:
            break
    assert status == 200


@pytest.mark.parametrize(
    ("limit", "data"),
    [
        ("head_timeout", b"GET /health HTTP/1.1\r\nX: "),
        ("body_timeout", post(b"x" * 500)[:-400]),
        ("body_timeout", CHUNKED + b"3\r\nx"),
        ("body_timeout", CHUNKED + b"1\r\nx\r\n0\r\nTrailer: "),
    ],
    ids=["head", "body", "chunk", "trailers"],
)
def test_slow_requests_are_refused_after_their_timeout(background, limit, data):
    with serving(background, **{limit: 0.2}) as web:
        client = web.connect().send(data)
        client.stream.settimeout(0.02)
        answer = b""
        while not answer:
            client.stream.sendall(b"x") if b"chunked" not in data else None
            try:
                answer = client.stream.recv(1 << 16)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408")
        assert web.inference.asked == []


def test_a_slow_answer_is_not_mistaken_for_a_slow_client(web):
    web.inference.holds = True
    client = web.connect().send(post())
    asked = web.inference.wait_for(1)
    web.sweep(0, 100_000)
    web.inference.answer(asked, Reply([BODY]))
    assert client.read()[0] == 200


# --- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [b"/model/add:m", b"/my-model/add:m"])
def test_an_incomplete_request_gets_503_when_the_server_stops(background, path):
    with serving(background) as web:
        client = web.connect().send(post(b"x" * 500, path)[:-400])
        eventually(lambda: web.server.shared.connections)
        web.turn()
        web.background.run(web.server.stop(grace=600), PATIENCE)
        status, headers, body = client.read()
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert b"the server is stopping" in body


def test_an_answer_that_comes_while_the_server_stops_is_sent(background):
    with serving(background) as web:
        web.inference.holds = True
        client = web.connect().send(post())
        asked = web.inference.wait_for(1)
        with ThreadPoolExecutor(1) as thread:
            stopping = thread.submit(web.background.run, web.server.stop(grace=600))
            eventually(lambda: is_refused(web.port))
            web.inference.answer(asked, Reply([BODY]))
            status, headers, _ = client.read()
            assert (status, headers["connection"]) == (200, "close")
            stopping.result(PATIENCE)


def is_refused(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False
