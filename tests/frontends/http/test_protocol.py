"""HTTP byte by byte: a real server on a real socket, over an inference that the test answers."""

import json
import socket
import threading

import pytest

from mindspore_serving.core.service import Reply
from mindspore_serving.errors import InvalidInputs, NotFound
from tests.frontends.http_serving import BODY, GET, MAX_BODY, post
from tests.waiting import PATIENCE, eventually

TOO_BIG = "http message is bigger than %d bytes; --max-msg-mb of the server sets this limit"

EMPTY = 'http message invalid: the body is empty, expected {"instances": [{"INPUT": VALUE}]}'


def echoed(x):
    """What the inference makes of an instance {"x": x}."""
    return {"instances": [{"instances": [{"x": x}]}]}


def numbered(x):
    return b'{"instances":[{"x":%d}]}' % x


# --- one request --------------------------------------------------------------------------------


def test_a_request_reaches_inference_unchanged(web):
    client = web.connect().send(post(path=b"/model/add/version/3:cast?a=b"))
    assert client.read_json() == echoed(1)
    request = web.inference.asked[0].request
    assert (request.servable, request.version, request.method) == ("add", 3, "cast")
    assert (request.codec, bytes(request.body), request.timeout) == ("ms_json", BODY, None)


def test_a_timeout_is_complete_from_its_header(web):
    web.connect().send(post(headers=[b"X-Request-Timeout: 1.5"])).read()
    assert web.inference.asked[0].request.timeout == 1.5


def test_a_bad_timeout_is_refused(web):
    answer = web.connect().send(post(headers=[b"X-Request-Timeout: soon"])).read_json()
    assert "X-Request-Timeout 'soon'" in answer["error_msg"]
    assert web.inference.asked == []


@pytest.mark.parametrize("cut", range(1, len(post())))
def test_a_request_may_be_split_at_every_byte(web, cut):
    data = post()
    assert web.connect().send(data[:cut], data[cut:]).read_json() == echoed(1)


def test_a_request_may_come_byte_by_byte(web):
    data = post()
    pieces = [data[i : i + 1] for i in range(len(data))]
    assert web.connect().send(*pieces).read_json() == echoed(1)


def test_a_chunked_body_is_put_together(web):
    head = b"POST /model/add:m HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in (BODY[:5], BODY[5:6], BODY[6:])]
    client = web.connect().send(head, *chunks, b"0\r\n\r\n")
    assert client.read_json() == echoed(1)


def test_expect_100_continue_is_answered_before_the_body_comes(web):
    data = post(headers=[b"Expect: 100-continue"])
    head, body = data.split(b"\r\n\r\n")
    client = web.connect().send(head + b"\r\n\r\n")
    assert client.read() == (100, {}, b"")
    assert client.send(body).read_json() == echoed(1)


def test_a_body_that_is_not_wanted_is_not_asked_for(web):
    head = post(b"x" * (MAX_BODY + 1), headers=[b"Expect: 100-continue"]).split(b"\r\n\r\n")[0]
    client = web.connect().send(head + b"\r\n\r\n")
    assert client.read()[2] == b'{"error_msg":"%b"}' % (TOO_BIG % 1000).encode()


OFFER = [b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"]


def test_an_offer_of_another_protocol_is_ignored(web):
    client = web.connect()
    for number in range(3):
        assert client.send(post(numbered(number), headers=OFFER)).read_json() == echoed(number)
    assert client.send(post()).read_json() == echoed(1)
    assert len(web.inference.asked) == 4


@pytest.mark.parametrize("cut", range(1, len(post(headers=OFFER)), 5))
def test_an_offer_may_be_split_like_any_request(web, cut):
    data = post(headers=OFFER)
    assert web.connect().send(data[:cut], data[cut:]).read_json() == echoed(1)


def test_offers_may_be_pipelined(web):
    offer = GET.replace(b"Host: x", b"Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket")
    client = web.connect().send(offer + post(headers=OFFER) + offer + post())
    bodies = [client.read()[2] for _ in range(4)]
    assert bodies[0] == bodies[2] == b"ready"
    assert json.loads(bodies[1]) == json.loads(bodies[3]) == echoed(1)


def test_the_body_of_an_offer_is_never_taken_for_a_request(web):
    client = web.connect().send(post(post(b"smuggled"), headers=OFFER))
    client.read()
    assert [bytes(asked.request.body) for asked in web.inference.asked] == [post(b"smuggled")]


def test_an_offer_on_a_connection_that_is_to_end_is_ignored(web):
    client = web.connect().send(post(headers=[b"Connection: close, Upgrade", b"Upgrade: h2c"]))
    assert client.read_json() == echoed(1)
    assert client.is_closed()


def test_connect_is_refused(web):
    client = web.connect().send(b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert client.read()[0] == 400


def test_a_servable_named_with_escapes_is_found(web):
    web.connect().send(post(path=b"/model/my%20add:m")).read()
    assert web.inference.asked[0].request.servable == "my add"


# --- keep-alive and pipelines -------------------------------------------------------------------


def test_a_connection_serves_several_requests(web):
    client = web.connect()
    for number in range(5):
        status, headers, body = client.send(post(numbered(number))).read()
        assert (status, json.loads(body)) == (200, echoed(number))
        assert "connection" not in headers


def test_connection_close_is_obeyed(web):
    client = web.connect().send(post(headers=[b"Connection: close"]))
    assert client.read()[1]["connection"] == "close"
    assert client.is_closed()


def test_http_1_0_closes(web):
    client = web.connect().send(post(version=b"1.0"))
    assert client.read()[1]["connection"] == "close"
    assert client.is_closed()


def test_pipelined_requests_are_answered_in_order(web):
    client = web.connect().send(b"".join(post(numbered(number)) for number in range(20)))
    assert [client.read_json() for _ in range(20)] == [echoed(number) for number in range(20)]


def test_pipelined_requests_are_submitted_in_turn(web):
    web.inference.holds = True
    client = web.connect().send(post(numbered(1)) + post(numbered(2)))
    first = web.inference.wait_for(1)
    web.turn()
    assert len(web.inference.asked) == 1
    web.inference.answer(first, Reply([b"1"]))
    assert client.read_json() == {"instances": [1]}
    web.inference.answer(web.inference.wait_for(2), Reply([b"2"]))
    assert client.read_json() == {"instances": [2]}


@pytest.mark.parametrize(
    "order", ["pgp", "gpg", "ppgg", "ggpp", "pbgpb", "bpg"[1:]], ids=lambda order: order
)
def test_mixed_pipelines_are_answered_in_order(web, order):
    """p: a classic call; g: GET /health; b: a call without a body."""
    kinds = {"p": post(), "g": GET, "b": post(b"")}
    texts = {
        "p": json.dumps(echoed(1), separators=(",", ":")).encode(),
        "g": b"ready",
        "b": json.dumps({"error_msg": EMPTY}, separators=(",", ":")).encode(),
    }
    client = web.connect().send(b"".join(kinds[kind] for kind in order))
    assert [client.read()[2] for _ in order] == [texts[kind] for kind in order]


def test_thousands_of_pipelined_refusals_break_nothing(web):
    web.inference.holds = True
    bad = b"POST /model/x HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
    client = web.connect().send(post() + bad * 3000)
    web.inference.answer(web.inference.wait_for(1), Reply([b"1"]))
    assert client.read_json() == {"instances": [1]}
    for _ in range(3000):
        assert "service method" in client.read_json()["error_msg"]
    web.inference.holds = False
    assert client.send(post()).read_json() == echoed(1)


# --- limits and nonsense ------------------------------------------------------------------------


def test_a_body_at_the_limit_is_served(web):
    client = web.connect().send(post(b'"' + b"x" * (MAX_BODY - 2) + b'"'))
    assert len(client.read()[2]) > MAX_BODY


def test_a_body_over_the_limit_by_its_length_is_refused(web):
    client = web.connect().send(post(b"x" * (MAX_BODY + 1)))
    status, headers, body = client.read()
    assert (status, headers["connection"]) == (200, "close")
    assert json.loads(body) == {"error_msg": TOO_BIG % 1000}
    assert web.inference.asked == []


def test_a_chunked_body_that_grows_over_the_limit_is_refused(web):
    head = b"POST /model/add:m HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%b\r\n" % (400, b"x" * 400)
    client = web.connect().send(head, chunk, chunk, chunk)
    status, headers, body = client.read()
    assert (status, headers["connection"]) == (200, "close")
    assert json.loads(body) == {"error_msg": TOO_BIG % 1000}
    assert web.inference.asked == []


def test_a_client_that_sends_on_after_a_refusal_still_gets_its_answer(web):
    client = web.connect()
    client.stream.sendall(post(b"x" * 300_000))
    assert b"bigger than 1000" in client.read()[2]


def test_an_empty_body_is_refused_and_the_connection_stays(web):
    client = web.connect().send(post(b""))
    assert client.read_json() == {"error_msg": EMPTY}
    assert client.send(post()).read_json() == echoed(1)


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"POST /model/add:m HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /model/add:m HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /model/add:m HTTP/1.1\r\nbad header\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["line", "length", "chunk", "header", "tls"],
)
def test_data_that_is_not_http_is_refused_and_the_connection_closed(web, data):
    client = web.connect().send(data)
    status, headers, _ = client.read()
    assert (status, headers["connection"]) == (400, "close")
    assert client.is_closed()


def test_invalid_data_after_a_request_leaves_earlier_answers_intact(web):
    web.inference.holds = True
    client, other = web.connect(), web.connect()
    client.send(post() + b"nonsense\r\n\r\n")
    other.send(post())
    for number in (1, 2):
        web.inference.answer(web.inference.wait_for(number), Reply([b"1"]))
    assert other.read_json() == {"instances": [1]}


# --- clients that leave -------------------------------------------------------------------------


def cancelled(web, asked):
    """True, once the server has noticed that the client is gone."""
    return eventually(lambda: asked.is_cancelled)


def test_a_client_that_leaves_cancels_its_call(web):
    web.inference.holds = True
    client = web.connect().send(post())
    asked = web.inference.wait_for(1)
    client.stream.close()
    assert cancelled(web, asked)
    web.inference.answer(asked, Reply([b"1"]))  # too late, and harmless
    web.inference.holds = False
    assert web.connect().send(post()).read_json() == echoed(1)


def test_a_client_that_leaves_a_pipeline_cancels_the_call_that_runs(web):
    web.inference.holds = True
    client = web.connect().send(post() + post() + GET)
    first = web.inference.wait_for(1)
    client.stream.close()  # not seen yet: nothing is read while answers are owed
    web.inference.answer(first, Reply([b"1"]))
    assert cancelled(web, web.inference.wait_for(2))


def test_a_client_that_leaves_in_the_middle_of_a_body_asks_nothing(web):
    client = web.connect().send(post()[:-3])
    client.stream.close()
    web.turn()
    assert web.connect().send(post()).read_json() == echoed(1)
    assert len(web.inference.asked) == 1


# --- failures and status codes ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "status"), [(NotFound("no such"), 404), (InvalidInputs("bad"), 400)]
)
def test_status_codes_are_sent_if_they_were_asked_for(web_with_codes, failure, status):
    web = web_with_codes
    web.inference.holds = True
    client = web.connect().send(post())
    web.inference.answer(web.inference.wait_for(1), Reply(failure=failure))
    answer = client.read()
    assert (answer[0], json.loads(answer[2])) == (status, {"error_msg": str(failure)})
    web.inference.holds = False
    assert client.send(post()).read()[0] == 200  # the connection stays


def test_without_status_codes_every_answer_is_200(web):
    web.inference.holds = True
    client = web.connect().send(post())
    web.inference.answer(web.inference.wait_for(1), Reply(failure=NotFound("no such")))
    assert client.read_json() == {"error_msg": "no such"}


@pytest.mark.parametrize("path", [b"/model/add", b"/model/", b"/model/:m"])
def test_an_incomplete_path_is_refused_with_the_missing_part(web, path):
    assert "please check url" in web.connect().send(post(path=path)).read_json()["error_msg"]


def test_an_inference_that_raises_is_an_answer_and_no_end(web, capsys):
    def fail(request, on_reply):
        raise ZeroDivisionError("a bug of ours")

    web.inference.submit = fail
    client = web.connect()
    for _ in range(2):
        assert client.send(post()).read_json() == {"error_msg": "Predict failed"}


# --- the application ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (b"/health", b"ready"),
        (b"/servables", b'{"servables":[{"name":"add"}]}'),
    ],
)
def test_get_goes_to_the_application(web, path, body):
    client = web.connect().send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path)
    status, _, answer = client.read()
    assert (status, answer) == (200, body)


def test_metrics_are_those_that_were_gathered_and_those_of_the_process(web):
    status, _, answer = web.connect().send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").read()
    assert status == 200
    assert b"\nserving_requests_in_flight 3.0\n" in answer
    assert b"\nprocess_open_fds " in answer


@pytest.mark.parametrize("verb", [b"GET", b"PUT", b"DELETE"])
def test_a_classic_path_takes_only_post(web, verb):
    client = web.connect().send(b"%b /model/add:m HTTP/1.1\r\nHost: x\r\n\r\n" % verb)
    assert client.read_json() == {"error_msg": "http message only support POST right now"}


def test_a_classic_path_of_another_form_is_served_by_the_application(web):
    client = web.connect().send(post(path=b"/my-model/add:m", headers=[b"X-Request-Timeout: 2"]))
    assert client.read_json() == echoed(1)
    request = web.inference.asked[0].request
    assert (request.servable, request.method, request.timeout) == ("add", "m", 2.0)


def test_the_application_has_the_same_limit(web):
    client = web.connect().send(post(b"x" * (MAX_BODY + 1), path=b"/my-model/add:m"))
    assert client.read_json() == {"error_msg": TOO_BIG % 1000}


# --- the server ---------------------------------------------------------------------------------


def test_stop_lets_a_running_request_finish_and_closes_idle_connections(web):
    web.inference.holds = True
    busy, idle = web.connect(), web.connect()
    idle.send(GET).read()
    busy.send(post())
    asked = web.inference.wait_for(1)
    stopping = threading.Thread(target=web.background.run, args=[web.server.stop(grace=600)])
    stopping.start()
    assert idle.is_closed()
    web.inference.answer(asked, Reply([b"1"]))
    status, headers, _ = busy.read()
    assert (status, headers["connection"]) == (200, "close")
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
    with pytest.raises(ConnectionRefusedError):
        web.connect()


def test_stop_aborts_requests_after_the_grace_period(web):
    web.inference.holds = True
    client = web.connect().send(post())
    asked = web.inference.wait_for(1)
    web.background.run(web.server.stop(grace=0.01))
    assert client.is_closed()
    assert cancelled(web, asked)


def test_idle_connections_are_closed_and_busy_connections_are_not(web):
    web.inference.holds = True
    idle, half, busy = web.connect(), web.connect(), web.connect()
    idle.send(GET).read()
    half.send(post()[:-3])
    busy.send(post())
    asked = web.inference.wait_for(1)
    web.sweep(0, 101)
    assert idle.is_closed()
    assert half.read()[0] == 408
    assert half.is_closed()
    web.inference.answer(asked, Reply([b"1"]))
    assert busy.read_json() == {"instances": [1]}


def test_a_client_that_reads_nothing_for_long_is_hung_up_on(web):
    """What it does not take lies in our memory.  One that reads slowly is waited for."""
    web.inference.holds = True
    answer = Reply([b"[%b1]" % (b"1," * 16_000_000)])
    slow = web.connect()
    slow.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)  # the kernel takes no more
    slow.send(post())
    web.inference.answer(web.inference.wait_for(1), answer)
    (slow_end,) = web.server.shared.connections
    stalled = web.connect().send(post())
    web.inference.answer(web.inference.wait_for(2), answer)
    web.sweep(0)
    unread = slow_end.transport.get_write_buffer_size()
    assert unread > 0
    slow.read_bytes(8_000_000)  # not all: while a client reads, one write of the server goes on
    eventually(lambda: slow_end.transport.get_write_buffer_size() < unread)
    web.sweep(101)
    web.turn()
    assert web.server.shared.connections == {slow_end}
    assert not slow_end.transport.is_closing()
    got = b"".join(iter(lambda: stalled.stream.recv(1 << 20), b""))
    assert 0 < len(got) < 32_000_000
