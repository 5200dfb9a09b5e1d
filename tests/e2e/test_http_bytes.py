"""The HTTP port as strangers see it: raw bytes, connections, sizes."""

import http.client
import json
import os
import socket

import pytest

from tests.e2e import toys
from tests.e2e.harness import eventually, memory, workers
from tests.e2e.toys import ANSWER, GOOD
from tests.waiting import PATIENCE

SOURCE = toys.SOURCE
TOO_BIG = "http message is bigger than %d bytes; --max-msg-mb of the server sets this limit"


@pytest.fixture(autouse=True)
def still_well(calls):
    before = workers(os.getpid())
    yield
    assert calls.http_call("POST", "/model/toy:same", GOOD) == (200, ANSWER)
    assert workers(os.getpid()) == before


def post(path: str = "/model/toy:same", body: bytes = GOOD, headers: str = "") -> bytes:
    start = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    )
    return start.encode() + body


def test_pipelined_requests_are_answered_in_order(calls):
    bodies = [b'{"instances":{"x":%d}}' % n for n in range(20)]
    data = b"".join(post(body=body) for body in bodies)
    data += post("/model/toy:slow", b'{"instances":{"x":0.0625}}') + b"GET /health HTTP/1.1\r\n\r\n"
    data += post(body=b'{"instances":{"x":7}}', headers="Connection: close\r\n")
    answer = calls.send(data)
    found = [line for line in answer.replace(b"HTTP/1.1", b"\n").split(b"\n") if b"{" in line]
    assert [json.loads(line)["instances"][0]["y"] for line in found] == [*range(20), 0.0625, 7]
    assert answer.count(b"HTTP/1.1 200") == 23


def test_requests_after_the_last_answer_of_a_connection_never_run(calls):
    for last in (post("/model/toy"), post(body=b"{}", headers="Connection: close\r\n")):
        assert calls.send(last + post("/model/toy:mark")).count(b"HTTP/1.1") == 1
        calls.post("toy", "same", {"x": 1})
        assert not os.path.exists("mark")
    calls.post("toy", "mark", {"x": 1})
    assert os.path.exists("mark")


def test_a_request_in_single_bytes_is_understood(calls):
    with socket.create_connection(("127.0.0.1", calls.http)) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in post():
            stream.send(bytes([byte]))
        assert stream.recv(4096).endswith(ANSWER)


def test_a_chunked_body_is_understood(calls):
    connection = http.client.HTTPConnection("127.0.0.1", calls.http, timeout=PATIENCE)
    connection.request("POST", "/model/toy:same", iter([GOOD[:5], GOOD[5:]]), encode_chunked=True)
    assert connection.getresponse().read() == ANSWER
    connection.close()


def test_expect_100_continue_is_answered_first(calls):
    answer = calls.send(post(headers="Expect: 100-continue\r\nConnection: close\r\n"))
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert answer.endswith(ANSWER)


def test_http_1_0_closes_and_1_1_stays_open(calls):
    answer = calls.send(post().replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert answer.endswith(ANSWER)
    connection = http.client.HTTPConnection("127.0.0.1", calls.http, timeout=PATIENCE)
    for _ in range(3):
        connection.request("POST", "/model/toy:same", GOOD)
        assert connection.getresponse().read() == ANSWER
    connection.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"GET\r\n\r\n",
        b"POST /model/toy:same HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /model/toy:same HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
        b"POST /model/toy:same HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /model/toy:same HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /model/toy:same HTTP/1.1\r\nbad header\r\n\r\n",
        bytes(range(256)) * 8,
    ],
    ids=lambda data: repr(data[:30]),
)
def test_bytes_that_are_no_http_are_refused_and_the_connection_closed(calls, data):
    answer = calls.send(data)
    assert answer.startswith(b"HTTP/1.1 400"), answer


@pytest.mark.parametrize(
    "start",
    [
        b"POST /model/toy:same HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /model/toy:same HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Content-Length: 21\r\n\r\n" + GOOD,
    ],
)
def test_ambiguous_or_upgrading_requests_get_at_most_a_single_answer(calls, start):
    assert calls.send(start + b"0\r\n\r\n", seconds=2).count(b"HTTP/1.1") <= 2


def test_a_client_that_leaves_in_the_middle_disturbs_nobody(calls):
    whole = post()
    for end in range(0, len(whole), 7):
        with socket.create_connection(("127.0.0.1", calls.http)) as stream:
            stream.send(whole[:end])
    assert calls.send(whole, seconds=2).startswith(b"HTTP/1.1 200")


# --- sizes --------------------------------------------------------------------------------------

BIG = b'{"instances":{"x":"' + b"a" * (4 << 20) + b'"}}'


def test_a_body_over_the_limit_is_refused_readably(calls):
    connection = http.client.HTTPConnection("127.0.0.1", calls.http, timeout=PATIENCE)
    connection.request("POST", "/model/toy:same", BIG)
    reply = connection.getresponse()
    assert json.loads(reply.read()) == {"error_msg": TOO_BIG % 1048576}
    connection.close()


def test_a_chunked_body_over_the_limit_is_refused_readably(calls):
    connection = http.client.HTTPConnection("127.0.0.1", calls.http, timeout=PATIENCE)
    chunks = (BIG[start : start + 65536] for start in range(0, len(BIG), 65536))
    connection.request("POST", "/model/toy:same", chunks, encode_chunked=True)
    reply = connection.getresponse()
    assert json.loads(reply.read()) == {"error_msg": TOO_BIG % 1048576}
    connection.close()


def test_a_body_over_the_limit_on_another_path_is_refused_readably(calls):
    connection = http.client.HTTPConnection("127.0.0.1", calls.http, timeout=PATIENCE)
    connection.request("POST", "/elsewhere/model/toy:same", BIG)
    reply = connection.getresponse()
    assert json.loads(reply.read()) == {"error_msg": TOO_BIG % 1048576}
    connection.close()


def test_a_body_at_the_limit_is_served(calls):
    text = b"a" * ((1 << 20) - len(b'{"instances":{"x":""}}'))
    status, answer = calls.http_call("POST", "/model/toy:same", b'{"instances":{"x":"%b"}}' % text)
    assert status == 200
    assert json.loads(answer) == {"instances": [{"y": text.decode()}]}


@pytest.mark.parametrize(
    "endless",
    [
        b"GET /" + b"a" * 65536,
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10000,
        b"GET / HTTP/1.1\r\na: ",
    ],
    ids=["path", "headers", "header"],
)
def test_headers_without_end_are_refused_and_take_no_memory(calls, endless):
    before = memory(os.getpid())
    with socket.create_connection(("127.0.0.1", calls.http), timeout=PATIENCE) as stream:
        try:
            stream.sendall(endless)
            for _ in range(400):
                stream.sendall(b"a" * 65536 if b"\r\na: b" not in endless else b"a: b\r\n" * 10000)
        except ConnectionError:
            pass
        else:
            pytest.fail("25 MB of headers were taken")
    assert memory(os.getpid()) - before < 16 << 20


def test_a_stalled_client_does_not_block_other_clients(calls):
    with socket.create_connection(("127.0.0.1", calls.http)) as stalled:
        stalled.send(post()[:40])
        assert calls.http_call("POST", "/model/toy:same", GOOD) == (200, ANSWER)


def test_a_client_that_does_not_read_does_not_fill_memory(calls):
    before = memory(os.getpid())
    text = b"a" * (1 << 19)
    request = post(body=b'{"instances":{"x":"%b"}}' % text)
    with socket.create_connection(("127.0.0.1", calls.http), timeout=2) as stream:

        def send_128_megabytes() -> None:
            for _ in range(256):
                stream.sendall(request)

        with pytest.raises(TimeoutError):
            send_128_megabytes()
        assert memory(os.getpid()) - before < 64 << 20
    eventually(lambda: calls.http_call("GET", "/health")[0] == 200)
