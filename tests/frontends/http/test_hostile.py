"""What attackers and broken clients send: one clear answer, nothing run twice or by mistake."""

import json

import pytest

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply
from tests.frontends.http_serving import BODY, GET, Web, post

POST = b"POST /model/add:m HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)
SMUGGLED = post(path=b"/model/smuggled:m")
LIMITS = ServerLimits()
MAX_HEAD, MAX_WAITING = LIMITS.max_head, LIMITS.max_pipelined


def bodies(web):
    return [bytes(asked.request.body) for asked in web.inference.asked]


def is_refused(client, status):
    """Whether the next answer is `status`, and the last."""
    found, headers, _ = client.read()
    assert (found, headers["connection"]) == (status, "close")
    return client.is_closed()


@pytest.fixture
def locked(background):
    """A server that wants a key."""
    made = Web(background, api_keys=["a-key-that-is-long-enough"])
    yield made
    made.close()


# --- where a request ends -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5, 5\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: 0x5\r\n",
        b"Content-Length:\r\n",
        b"Content-Length: 5 5\r\n",
        b"Content-Length: 18446744073709551616\r\n",
        b"Content-Length: %b5\r\n" % (b"0" * 4400),
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: \x0bchunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
    ],
    ids=repr,
)
def test_a_body_of_doubtful_length_is_refused(web, fields):
    client = web.connect().send(POST + fields + b"\r\n0\r\n\r\n" + SMUGGLED)
    assert is_refused(client, 400)
    assert web.inference.asked == []


@pytest.mark.parametrize(
    "head",
    [
        POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        POST + b"Transfer-Encoding: identity\r\n\r\n",
        POST + b"Transfer-Encoding: xchunked\r\n\r\n",
        POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
        CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
    ids=["gzip", "identity", "xchunked", "in two headers", "HTTP/1.0"],
)
def test_other_transfer_encodings_are_not_served(web, head):
    assert is_refused(web.connect().send(head + CHUNK + b"0\r\n\r\n" + SMUGGLED), 501)
    assert web.inference.asked == []


@pytest.mark.parametrize(
    "chunk",
    [
        b"g\r\n",
        b"-1\r\n",
        b"0x1\r\nx\r\n",
        b"1 \r\nx\r\n",
        b"\r\n",
        b"1\nx\r\n",
        b"1\r\nxy\r\n",
        b"1\r\nx\n",
        b"1;a\nb\r\nx\r\n",
        b"10000000000000000\r\n",
        b"0\r\nContent-Length: 3\r\n\r\n",
        b"0\r\n folded\r\n\r\n",
    ],
    ids=repr,
)
def test_a_chunk_that_is_none_is_refused(web, chunk):
    client = web.connect().send(CHUNKED + CHUNK + chunk + b"0\r\n\r\n" + SMUGGLED)
    assert is_refused(client, 400)
    assert web.inference.asked == []


def test_the_length_of_a_chunk_is_no_promise_that_memory_is_taken_for(web):
    client = web.connect().send(CHUNKED + b"fffffffffffffff0\r\nx")
    client.stream.close()
    assert web.connect().send(post()).read()[0] == 200


def test_chunked_may_be_written_in_any_case_and_with_spaces(web):
    head = POST + b"Transfer-Encoding: \t Chunked \r\n\r\n"
    assert web.connect().send(head + CHUNK + b"0\r\n\r\n").read()[0] == 200
    assert bodies(web) == [BODY]


def test_chunk_extensions_are_ignored(web):
    data = CHUNKED + CHUNK.replace(b"\r\n", b";a=b;c\r\n", 1) + b"0;d\r\n\r\n"
    assert web.connect().send(data).read()[0] == 200
    assert bodies(web) == [BODY]


def test_trailers_are_ignored(web):
    trailers = b"X-Request-Timeout: 1\r\nAuthorization: Bearer x\r\n\r\n"
    client = web.connect().send(CHUNKED + CHUNK + b"0\r\n" + trailers)
    assert client.read()[0] == 200
    assert web.inference.asked[0].request.timeout is None
    assert client.send(post()).read()[0] == 200


@pytest.mark.parametrize("verb", [b"GET", b"DELETE", b"OPTIONS"])
def test_the_body_of_any_verb_is_complete_to_its_end(web, verb):
    data = b"%b /health HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (verb, len(SMUGGLED)) + SMUGGLED
    client = web.connect().send(data + GET)
    client.read()
    assert client.read()[2] == b"ready"
    assert web.inference.asked == []


# --- lines that are none ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        POST + b"X: a\r\n b\r\n\r\n",
        POST + b"X: a\r\n\tb\r\n\r\n",
        b"POST /model/add:m HTTP/1.1\r\n X: a\r\n\r\n",
        POST + b"X: a\0b\r\n\r\n",
        POST + b"X\0: a\r\n\r\n",
        b"POST /model/add:m\0 HTTP/1.1\r\n\r\n",
        POST.replace(b"\r\n", b"\n") + b"\n",
        POST + b"X: a\nY: b\r\n\r\n",
        POST + b"X: a\rY: b\r\n\r\n",
        POST + b": a\r\n\r\n",
        POST + b"X y: a\r\n\r\n",
        b"POST /model/add:m a HTTP/1.1\r\n\r\n",
        b"POST /model/\xc3\xa9:m HTTP/1.1\r\n\r\n",
        b"post /model/add:m HTTP/1.1\r\n\r\n",
        b"POST /model/add:m HTTP/1.2\r\n\r\n",
        b"POST /model/add:m HTTP/1\r\n\r\n",
        b"A" * 100,
    ],
    ids=repr,
)
def test_a_head_of_another_form_is_refused(web, head):
    assert is_refused(web.connect().send(head + SMUGGLED), 400)
    assert web.inference.asked == []


@pytest.mark.parametrize("version", [b"HTTP/2.0", b"HTTP/0.9"])
def test_other_versions_are_refused(web, version):
    assert is_refused(web.connect().send(GET.replace(b"HTTP/1.1", version)), 505)


def test_absolute_request_targets_are_served_by_their_path(web):
    client = web.connect().send(GET.replace(b"/health", b"http://elsewhere:80/health"))
    assert client.read()[2] == b"ready"
    assert client.send(post(path=b"http://elsewhere/model/add:m")).read()[0] == 200
    assert bodies(web) == [BODY]


@pytest.mark.parametrize("target", [b"*", b"http://elsewhere"])
def test_a_target_without_a_path_is_refused(web, target):
    assert is_refused(web.connect().send(b"OPTIONS %b HTTP/1.1\r\n\r\n" % target), 400)


# --- sizes --------------------------------------------------------------------------------------


def with_headers(count):
    fields = b"".join(b"X-%d: y\r\n" % number for number in range(count))
    return b"GET /health HTTP/1.1\r\n" + fields + b"\r\n"


def test_as_many_headers_as_are_allowed_are_served(web):
    client = web.connect().send(with_headers(LIMITS.max_headers))
    assert client.read()[2] == b"ready"


def test_more_headers_are_refused(web):
    client = web.connect().send(with_headers(LIMITS.max_headers + 1))
    assert client.read()[0] == 431


def test_more_headers_are_refused_before_their_end(web):
    assert web.connect().send(with_headers(LIMITS.max_headers + 2)[:-2]).read()[0] == 431


def head_of_size(size):
    start, end = b"GET /health HTTP/1.1\r\nX: ", b"\r\n\r\n"
    return start + b"x" * (size - len(start) - len(end)) + end


@pytest.mark.parametrize("at", [1, 100, MAX_HEAD // 2, MAX_HEAD - 1])
def test_the_largest_head_may_come_in_pieces(web, at):
    head = head_of_size(MAX_HEAD)
    assert web.connect().send(head[:at], head[at:]).read()[2] == b"ready"


@pytest.mark.parametrize("at", [1, 100, MAX_HEAD // 2, MAX_HEAD - 1])
def test_a_complete_head_over_the_limit_is_refused(web, at):
    head = head_of_size(MAX_HEAD + 100)
    assert web.connect().send(GET + head[:at], head[at:]).read()[2] == b"ready"
    assert web.clients[0].read()[0] == 431


@pytest.mark.parametrize(
    "start",
    [
        b"GET /",
        b"GET / HTTP/1.1\r\nX: ",
        b"GET / HTTP/1.1\r\nX",
        CHUNKED + b"1;",
        CHUNKED + CHUNK + b"0\r\nX: ",
    ],
    ids=["target", "value", "name", "extension", "trailer"],
)
def test_a_line_without_end_is_refused_with_an_answer(web, start):
    client = web.connect().send(start)
    client.stream.sendall(b"x" * (MAX_HEAD * 3))
    assert client.read()[0] == 431


def test_trailers_are_counted_like_headers(web):
    field = b"X: y\r\n"
    many = field * (LIMITS.max_headers + 2)
    assert web.connect().send(CHUNKED + CHUNK + b"0\r\n" + many).read()[0] == 431
    few = field * (LIMITS.max_headers - 1)
    assert web.connect().send(CHUNKED + CHUNK + b"0\r\n" + few + b"\r\n").read()[0] == 200


def test_trailers_without_end_are_refused_and_the_client_cut_off(web):
    client = web.connect().send(CHUNKED + CHUNK + b"0\r\n")
    with pytest.raises(ConnectionError):
        client.flood(b"X: y\r\n" * 10_000, 1000)
    assert web.inference.asked == []


def test_empty_lines_before_a_request_are_few(web):
    assert web.connect().send(b"\r\n" * 100 + GET).read()[0] == 200
    client = web.connect()
    client.stream.sendall(b"\r\n" * MAX_HEAD * 2)
    assert client.read()[0] == 431


def test_a_client_that_sends_on_after_an_error_is_cut_off(web):
    client = web.connect().send(b"nonsense\r\n\r\n")
    with pytest.raises(ConnectionError):
        client.flood(b"x" * 65536, 1000)


@pytest.mark.parametrize("path", [b"/model/add:m", b"/my-model/add:m"])
def test_a_missing_key_is_refused_before_the_body_comes(locked, path):
    client = locked.connect().send(CHUNKED.replace(b"/model/add:m", path))
    assert is_refused(client, 401)


# --- times --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "piece"),
    [(b"GET /health HTTP/1.1\r\nX: ", b"x"), (b"GET /", b"x"), (b"\r\n", b"\r\n")],
    ids=["header", "target", "empty lines"],
)
def test_a_head_that_comes_in_drops_is_refused_in_the_end(web, start, piece):
    client = web.connect().send(start)
    web.turn()
    for second in range(0, int(LIMITS.head_timeout), 10):
        client.send(piece)
        web.turn()
        web.sweep(second)
    web.sweep(LIMITS.head_timeout + 1)
    assert is_refused(client, 408)


@pytest.mark.parametrize("path", [b"/model/add:m", b"/my-model/add:m"])
def test_a_body_that_comes_in_drops_is_refused_in_the_end(web, path):
    client = web.connect().send(post(b"x" * 500, path)[:-400])
    web.turn()
    for second in range(0, int(LIMITS.body_timeout), 60):
        client.send(b"x")
        web.turn()
        web.sweep(second)
    web.sweep(LIMITS.body_timeout + 1)
    assert is_refused(client, 408)
    assert web.inference.asked == []


def test_a_head_that_is_slow_but_in_time_is_served(web):
    client = web.connect().send(GET[:-2])
    web.turn()
    web.sweep(0, LIMITS.head_timeout - 10)
    assert client.send(GET[-2:]).read()[2] == b"ready"


def test_many_quick_requests_do_not_count_as_a_slow_request(web):
    client = web.connect()
    for second in (0, 20, 40, 60):
        client.send(GET[:10])
        web.turn()
        web.sweep(second)
        assert client.send(GET[10:]).read()[2] == b"ready"


# --- order --------------------------------------------------------------------------------------


def test_invalid_data_is_answered_after_earlier_requests(web):
    web.inference.holds = True
    client = web.connect().send(post() + post() + b"nonsense\r\n\r\n")
    for number in (1, 2):
        web.inference.answer(web.inference.wait_for(number), Reply([b"%d" % number]))
        assert client.read_json() == {"instances": [number]}
    assert is_refused(client, 400)


def test_an_invalid_body_is_answered_after_earlier_requests(web):
    web.inference.holds = True
    client = web.connect().send(post() + CHUNKED + b"zz\r\n")
    web.inference.answer(web.inference.wait_for(1), Reply([b"1"]))
    assert client.read_json() == {"instances": [1]}
    assert is_refused(client, 400)
    assert len(web.inference.asked) == 1


def test_nothing_is_run_after_the_last_request_of_a_connection(web):
    web.inference.holds = True
    client = web.connect().send(post(headers=[b"Connection: close"]) + SMUGGLED)
    web.inference.answer(web.inference.wait_for(1), Reply([b"1"]))
    assert client.read_json() == {"instances": [1]}
    assert client.is_closed()
    assert len(web.inference.asked) == 1


def test_100_continue_is_not_sent_into_the_answer_before(web):
    web.inference.holds = True
    head, body = post(headers=[b"Expect: 100-continue"]).split(b"\r\n\r\n")
    client = web.connect().send(post() + head + b"\r\n\r\n")
    web.inference.answer(web.inference.wait_for(1), Reply([b"1"]))
    assert client.read_json() == {"instances": [1]}
    assert client.read() == (100, {}, b"")
    client.send(body)
    web.inference.answer(web.inference.wait_for(2), Reply([b"2"]))
    assert client.read_json() == {"instances": [2]}


# --- memory -------------------------------------------------------------------------------------


def test_requests_that_wait_for_an_answer_are_not_read_without_end(web):
    web.inference.holds = True
    client = web.connect().send(post())
    web.inference.wait_for(1)
    client.stream.settimeout(1)
    with pytest.raises(TimeoutError):
        client.flood(GET * 1000, 10_000)
    (connection,) = web.server.shared.connections
    assert len(connection._exchanges) <= MAX_WAITING + MAX_HEAD // len(GET) + 1


def test_answers_do_not_let_more_wait_than_before(web):
    """Each answer is followed by a read, as long as few requests wait."""
    web.inference.holds = True
    client = web.connect().send(post())
    client.stream.settimeout(1)
    with pytest.raises(TimeoutError):
        client.flood(post() * 100, 10_000)
    (connection,) = web.server.shared.connections
    for number in range(1, 50):
        web.inference.answer(web.inference.wait_for(number), Reply([b"1"]))
        web.turn()
    assert len(connection._exchanges) <= MAX_WAITING + MAX_HEAD // len(post()) + 1


def test_a_client_that_never_reads_has_few_requests_run(web):
    answer = Reply([b'"%b"' % (b"x" * (1 << 20))])
    web.inference.holds = True
    client = web.connect()
    client.send(post() * 100)
    web.inference.wait_for(1)
    number = 0
    while len(web.inference.asked) > number:
        web.inference.answer(web.inference.wait_for(number + 1), answer)
        number += 1
        web.turn()
    assert number < 50
    web.inference.holds = False
    assert json.loads(client.read()[2])["instances"] == ["x" * (1 << 20)]


# --- bugs of ours -------------------------------------------------------------------------------


def test_a_bug_in_front_of_the_application_is_an_answer_and_no_end(web, capsys):
    def fail(head, output):
        raise ZeroDivisionError("a bug of ours")

    web.server._path = type("Path", (), {"open": staticmethod(fail)})
    assert is_refused(web.connect().send(GET), 500)
    assert "ZeroDivisionError: a bug of ours" in capsys.readouterr().err
