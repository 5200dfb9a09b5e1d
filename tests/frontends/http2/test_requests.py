"""Requests by HTTP/2 to a real server: the library h2 is its strict peer, or programs."""

import json
import shutil
import subprocess
import threading

import pytest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply
from tests.frontends.http2.peer import Peer
from tests.frontends.http2.test_hostile import DATA, RawClient, request
from tests.frontends.http_serving import BODY, Web
from tests.waiting import PATIENCE, eventually

ECHOED = {"instances": [{"instances": [{"x": 1}]}]}
MEGABYTE = 1 << 20


async def show(request):
    names = ("http_version", "method", "path", "query_string", "scheme", "headers")
    return Response(json.dumps({name: request.scope[name] for name in names}, default=bytes.decode))


async def echo(request):
    return Response(await request.body())


async def tokens(request):
    async def made():
        for number in range(int(request.query_params["n"])):
            yield b"%d " % number

    return StreamingResponse(made(), media_type="text/plain")


async def large(request):
    return Response(b"x" * int(request.query_params["n"]))


async def refuse(request):
    return Response(b"no", 403)


async def cut(request):
    async def made():
        yield b"one"
        raise ZeroDivisionError("a bug of ours")

    return StreamingResponse(made())


ROUTES = [
    Route(f"/{handler.__name__}", handler, methods=["GET", "POST"])
    for handler in (show, echo, tokens, large, refuse, cut)
]


@pytest.fixture
def web(background):
    made = Web(background, routes=ROUTES, max_body=8 * MEGABYTE, use_status_codes=True)
    yield made
    made.close()


@pytest.fixture
def peer(web):
    made = Peer(web.port)
    yield made
    made.close()


# --- a request ------------------------------------------------------------------------------------


def test_a_call_is_answered_as_by_http1(web, peer):
    answer = peer.read(peer.ask(body=BODY))
    assert (answer.status, json.loads(answer.body)) == (200, ECHOED)
    assert web.inference.asked[0].request.codec == "ms_json"
    answer = peer.read(peer.ask(path="/health"))
    assert (answer.status, answer.body) == (200, b"ready")


def test_an_application_gets_the_fields_of_the_request(peer):
    cookies = [("cookie", "a=1"), ("cookie", "b=2")]
    scope = json.loads(peer.read(peer.ask(("x", "y"), *cookies, path="/show?a=b")).body)
    headers = [["host", "test"], ["x", "y"], ["cookie", "a=1; b=2"]]
    assert scope == {
        "http_version": "2",
        "method": "GET",
        "path": "/show",
        "query_string": "a=b",
        "scheme": "http",
        "headers": headers,
    }


def test_spaces_around_a_value_are_left_out(web):
    raw = RawClient(web)
    raw.send(request(1, ("x", " y\t"), path="/show"))
    frame = raw.read(lambda frame: frame[0] == DATA and frame[3])
    assert ["x", "y"] in json.loads(frame[3])["headers"]
    raw.socket.close()


def test_an_unknown_route_is_refused(peer):
    answer = peer.read(peer.ask(path="/nothing"))
    assert (answer.status, b"there is no route GET /nothing" in answer.body) == (404, True)


def test_a_path_that_is_no_path_is_refused(peer):
    assert peer.read(peer.ask(path="*", method="OPTIONS")).status == 400


def test_an_answer_to_head_has_no_body(peer):
    answer = peer.read(peer.ask(path="/health", method="HEAD"))
    assert (dict(answer.fields)["content-length"], answer.body) == ("5", b"")


def test_a_key_is_asked_for(background):
    web = Web(background, api_keys=["a-key-that-is-long-enough"], use_status_codes=True)
    peer = Peer(web.port)
    assert peer.read(peer.ask(body=BODY)).status == 401
    key = ("authorization", "Bearer a-key-that-is-long-enough")
    assert peer.read(peer.ask(key, body=BODY)).status == 200
    peer.close()
    web.close()


# --- bodies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65_535, 200_000, 3 * MEGABYTE])
def test_a_body_passes_both_windows_in_both_directions(peer, size):
    body = bytes(range(256)) * (size // 256 + 1)
    answer = peer.read(peer.upload(body[:size], path="/echo"))
    assert answer.body == body[:size]


def test_an_answer_waits_for_the_window_of_the_client(web):
    peer = Peer(web.port, window=1000)
    peer.acknowledges = False
    number = peer.ask(path="/large?n=5000")
    peer.read(until=lambda: len(peer.answers[number].body) == 1000)
    peer.acknowledges = True
    peer.h2.increment_flow_control_window(4000, number)
    assert len(peer.read(number).body) == 5000
    peer.close()


def test_a_large_answer_does_not_hold_up_a_small_answer(web):
    peer = Peer(web.port)
    peer.acknowledges = False  # 65,535 bytes for all streams
    large = peer.ask(path="/large?n=65536")
    peer.read(until=lambda: len(peer.answers[large].body) == 65_535)
    peer.h2.increment_flow_control_window(100)
    peer.acknowledges = True
    assert peer.read(peer.ask(path="/health")).body == b"ready"
    peer.h2.increment_flow_control_window(1, large)
    peer.send()
    assert len(peer.read(large).body) == 65_536
    peer.close()


def test_a_body_is_not_read_after_a_refusal(web, peer):
    number = peer.ask(path="/refuse", method="POST", is_last=False)
    peer.read(until=lambda: peer.answers[number].body == b"no")
    peer.h2.send_data(number, b"x" * 100, end_stream=True)
    peer.send()
    assert peer.read(number).status == 403
    eventually(lambda: not any(each.streams for each in web.server.shared.connections))
    assert peer.read(peer.ask(path="/health")).status == 200


def test_a_held_back_body_is_asked_for(peer):
    expect = ("expect", "100-continue")
    number = peer.ask(expect, path="/echo", method="POST", is_last=False)
    peer.read(until=lambda: peer.answers[number].informed == [100])
    peer.h2.send_data(number, b"body", end_stream=True)
    peer.send()
    assert peer.read(number).body == b"body"


def test_trailers_end_a_request(peer):
    number = peer.ask(path="/echo", method="POST", is_last=False)
    peer.h2.send_data(number, b"body")
    peer.h2.send_headers(number, [("x-checksum", "1")], end_stream=True)
    peer.send()
    assert peer.read(number).body == b"body"


# --- several streams ------------------------------------------------------------------------------


def test_requests_of_a_connection_are_answered_side_by_side(web, peer):
    web.inference.holds = True
    first, second = peer.ask(body=BODY), peer.ask(body=BODY)
    web.inference.wait_for(2)
    web.background.run(reply(web.inference.calls[1]))
    assert peer.read(second).status == 200
    assert not peer.answers[first].has_ended
    web.background.run(reply(web.inference.calls[0]))
    assert peer.read(first).status == 200


def start_stop(web):
    """Let the server stop, while the test goes on."""
    stopping = threading.Thread(target=web.background.run, args=(web.server.stop(grace=PATIENCE),))
    stopping.start()
    return stopping


async def reply(call):
    call.reply(Reply([b"{}"]))


def test_a_hundred_streams_of_tokens_arrive_whole(peer):
    numbers = [peer.ask(path=f"/tokens?n={n}") for n in range(100)]
    for n, number in enumerate(numbers):
        assert peer.read(number).body == b"".join(b"%d " % each for each in range(n))


def test_a_stream_that_the_client_gives_up_is_cancelled(web, peer):
    web.inference.holds = True
    number = peer.ask(body=BODY)
    web.inference.wait_for(1)
    peer.h2.reset_stream(number, error_code=8)
    peer.send()
    web.inference.wait(lambda: web.inference.calls[0].is_cancelled)
    assert peer.read(peer.ask(path="/health")).status == 200


def test_a_lost_connection_cancels_its_requests(web, peer):
    web.inference.holds = True
    peer.ask(body=BODY)
    web.inference.wait_for(1)
    peer.close()
    web.inference.wait(lambda: web.inference.calls[0].is_cancelled)
    eventually(lambda: not web.server.shared.connections)
    assert web.held == 0


def test_an_answer_that_breaks_off_resets_its_stream(peer):
    answer = peer.read(peer.ask(path="/cut"))
    assert (answer.status, answer.body, answer.reset) == (200, b"one", 2)
    assert peer.read(peer.ask(path="/health")).status == 200


# --- the end --------------------------------------------------------------------------------------


def test_a_stop_ends_after_the_answers(web, peer):
    web.inference.holds = True
    number = peer.ask(body=BODY)
    web.inference.wait_for(1)
    stopping = start_stop(web)
    peer.read(until=lambda: peer.goaway is not None)
    web.background.run(reply(web.inference.calls[0]))
    assert peer.read(number).status == 200
    stopping.join(PATIENCE)
    peer.read(until=lambda: False)
    assert (peer.goaway.error_code, peer.is_open) == (0, False)


def test_a_stop_refuses_a_request_that_is_not_complete(web, peer):
    number = peer.ask(path="/model/add:m", method="POST", is_last=False)
    peer.read(peer.ask(path="/health"))
    stopping = start_stop(web)
    answer = peer.read(number)
    assert (answer.status, b"the server is stopping" in answer.body) == (503, True)
    peer.close()
    stopping.join(PATIENCE)


# --- slow clients ---------------------------------------------------------------------------------


def test_an_idle_connection_is_closed(web, peer):
    peer.read(peer.ask(path="/health"))
    web.sweep(0.0, ServerLimits().idle_timeout + 1)
    peer.read(until=lambda: False)
    assert peer.goaway.error_code == 0


def test_a_silent_client_with_a_request_is_pinged_and_then_dropped(web, peer):
    web.inference.holds = True
    peer.ask(body=BODY)
    web.inference.wait_for(1)
    limits = ServerLimits()
    web.sweep(0.0, limits.keepalive_time + 1)
    peer.read(until=lambda: peer.num_pings == 1)  # its answer counts as a sign of life
    assert not web.inference.calls[0].is_cancelled
    web.sweep(0.0)
    web.sweep(limits.keepalive_time + limits.keepalive_timeout + 1)
    web.inference.wait(lambda: web.inference.calls[0].is_cancelled)
    assert not web.server.shared.connections


def test_a_call_that_takes_too_long_is_answered_504(web, peer):
    web.inference.holds = True
    number = peer.ask(body=BODY)
    web.inference.wait_for(1)
    web.sweep(0.0)
    for connection in list(web.server.shared.connections):
        for stream in connection.streams:
            stream.seen_at -= ServerLimits().request_timeout
    web.sweep(1.0)
    assert peer.read(number).status == 504


def test_a_body_that_comes_too_slowly_is_answered_408(web, peer):
    number = peer.ask(path="/model/add:m", method="POST", is_last=False)
    peer.read(peer.ask(path="/health"))
    web.sweep(0.0)
    for connection in list(web.server.shared.connections):
        for stream in connection.streams:
            stream.seen_at -= ServerLimits().body_timeout
    web.sweep(1.0)
    assert peer.read(number).status == 408


def test_a_client_that_reads_nothing_is_dropped(web):
    peer = Peer(web.port)
    peer.acknowledges = False
    peer.ask(path="/large?n=100000")
    peer.read(until=lambda: len(peer.answers[1].body) == 65_535)
    web.sweep(0.0, ServerLimits().idle_timeout + 1)
    eventually(lambda: not web.server.shared.connections)
    peer.read(until=lambda: False)
    assert not peer.is_open
    peer.close()


# --- programs -------------------------------------------------------------------------------------


def run(*command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_curl_gets_an_answer_by_prior_knowledge(web):
    url = f"http://127.0.0.1:{web.port}/show"
    assert '"http_version": "2"' in run("curl", "-s", "--http2-prior-knowledge", url)


def test_nghttp_gets_an_answer(web):
    assert "ready" in run("nghttp", f"http://127.0.0.1:{web.port}/health")


def test_h2load_gets_all_its_answers(web):
    url = f"http://127.0.0.1:{web.port}/health"
    assert "500 succeeded" in run("h2load", "-n500", "-c2", "-m50", url)


def test_an_error_of_the_protocol_is_the_clients_alone(web, peer):
    other = Peer(web.port)
    other.send(b"\xff" * 100)
    other.read(until=lambda: False)
    assert peer.read(peer.ask(path="/health")).status == 200
    other.close()
