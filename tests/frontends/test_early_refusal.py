"""Requests that are refused from their heads: in the form in which their protocol would refuse
them, without being read, at a pace."""

import http.client
import json
from contextlib import closing

import pytest

from mindspore_serving.core.llm_messages import Refused
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.errors import Overloaded
from mindspore_serving.frontends.chat.refusals import PATHS
from mindspore_serving.frontends.http.early_refusal import BURST, MAX_DELAY, RATE, TICK, RefusalPace
from mindspore_serving.frontends.keys import ApiKey
from mindspore_serving.frontends.tenants.limits import Limits
from mindspore_serving.frontends.v2.fast_infer import FastInfer
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.frontends.v2.shared_memory import SharedMemory
from tests.frontends.http_serving import Web as ClassicWeb
from tests.frontends.http_serving import post as post_to
from tests.frontends.mounting import anthropic_routes, llamacpp_routes, ollama_routes, openai_routes
from tests.frontends.openai.serving import serving
from tests.frontends.v2.test_own_infer import PATH, Models
from tests.waiting import PATIENCE

BUSY = Overloaded(
    "the request would take 5.0 s, which is too long; try again later", retry_after=7.2
)
ASKED = [{"role": "user", "content": "hello"}]
BODIES = {
    "/v1/chat/completions": {"messages": ASKED},
    "/v1/completions": {"prompt": "abc"},
    "/v1/responses": {"input": "abc"},
    "/v1/embeddings": {"input": "abc", "model": "vectors"},
    "/v1/messages": {"messages": ASKED, "max_tokens": 4, "model": "toy"},
    "/api/chat": {"messages": ASKED, "model": "toy", "stream": False},
    "/api/generate": {"prompt": "abc", "model": "toy", "stream": False},
    "/completion": {"prompt": "abc"},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/api/embed": {"input": "abc", "model": "vectors"},
}


LONGEST_REQUEST = ServerLimits().request_timeout


def mount(state):
    routes = (openai_routes, anthropic_routes, ollama_routes, llamacpp_routes)
    return [row for bind in routes for row in bind(state)]


@pytest.fixture
def web():
    with serving(mount) as running:
        yield running


def fill(web, error=BUSY):
    """From now on there is no room for any request."""
    web.inference.is_refusing = True
    web.inference.refusal = lambda *_: error


def plain(answer):
    """What an answer says, but for the id of its request."""
    headers = {name.lower(): value for name, value in answer.headers.items()}
    mark = headers.pop("x-request-id")
    found = {name: "ID" if value == mark else value for name, value in headers.items()}
    found.pop("content-length")
    return answer.status, found, answer.body.decode().replace(mark, "ID")


@pytest.mark.parametrize("path", BODIES)
def test_an_early_refusal_equals_a_later_refusal_of_the_protocol(web, path):
    web.inference.script = lambda request: BUSY
    late = web.call("POST", path, BODIES[path])
    assert (late.status, late.headers["retry-after"]) in ((429, "8"), (529, "8"))
    num_calls = len(web.inference.calls)
    fill(web)
    early = web.call("POST", path, BODIES[path])
    assert plain(early) == plain(late)
    assert len(web.inference.calls) == num_calls


def test_every_path_that_is_refused_from_its_head_is_compared():
    assert {path.decode() for path in PATHS} == set(BODIES)


def test_a_refused_request_is_not_decoded_and_its_connection_goes_on(web):
    fill(web)
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=PATIENCE)
    for _ in range(2):
        connection.request("POST", "/v1/completions", b"{ no JSON", {"x-request-id": "mine"})
        answer = connection.getresponse()
        assert (answer.status, answer.headers["x-request-id"]) == (429, "mine")
        assert json.loads(answer.read())["error"]["message"] == str(BUSY)
    web.inference.refusal = lambda *_: None
    connection.request("POST", "/v1/completions", json.dumps(BODIES["/v1/completions"]))
    assert connection.getresponse().status == 200
    connection.close()


def test_a_large_body_of_a_refused_request_is_not_waited_for(web):
    fill(web)
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=PATIENCE)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("content-length", "1000000")
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, answer.headers["connection"]) == (429, "close")
    connection.close()


def test_a_request_is_read_while_any_model_has_room(web):
    web.inference.is_refusing = True
    web.inference.refusal = lambda servable, *_: BUSY if servable == "vectors" else None
    assert web.complete().status == 200
    assert web.call("POST", "/v1/embeddings", BODIES["/v1/embeddings"]).status == 429


def test_refusals_are_asked_for_with_the_time_that_the_client_has(web):
    asked = []
    web.inference.is_refusing = True
    web.inference.refusal = lambda *request: asked.append(request) or BUSY
    web.call("POST", "/v1/completions", {"prompt": "abc"}, {"x-request-timeout": "2.5"})
    web.complete()
    assert asked == [("toy", 0, "@generate", 2.5), ("toy", 0, "@generate", LONGEST_REQUEST)]


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), ({"authorization": "Bearer wrong"}, 401), ({"authorization": "Bearer k"}, 429)],
)
def test_who_has_no_key_is_told_so_by_a_server_without_room(headers, status):
    with serving(mount, [ApiKey("k")]) as web:
        fill(web)
        assert web.call("POST", "/v1/completions", {"prompt": "a"}, headers).status == status


def test_refusals_of_an_engine_have_the_status_of_early_refusals(web):
    web.answers(Refused("overloaded", "8 requests wait already, at most 8 may; try again"))
    late = web.complete()
    fill(web, Overloaded("8 requests wait already, at most 8 may; try again"))
    assert plain(web.complete()) == plain(late)


# --- the classic protocol -----------------------------------------------------------------------


def post(body=b'{"instances": [{"x": 1}]}', length=None):
    size = len(body) if length is None else length
    return b"POST /model/add:add HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (size, body)


@pytest.fixture
def classic(background):
    made = ClassicWeb(background, use_status_codes=True)
    made.inference.is_refusing = True
    made.inference.refusal = lambda *_: BUSY
    yield made
    made.close()


def test_an_early_refused_classic_request_keeps_its_connection(classic):
    client = classic.connect()
    for _ in range(2):
        status, headers, body = client.send(post()).read()
        assert (status, headers["retry-after"]) == (429, "8")
        assert json.loads(body) == {"error_msg": str(BUSY)}
    assert not classic.inference.calls


def test_a_classic_body_that_waits_for_permission_is_not_asked_for(classic):
    client, head = classic.connect(), post(b"", length=500)
    status, headers, _ = client.send(head[:-2] + b"expect: 100-continue\r\n\r\n").read()
    assert (status, headers["connection"]) == (429, "close")


def test_refusals_beyond_the_pace_are_written_a_little_later(classic):
    clients = [classic.connect() for _ in range(BURST + 10)]
    for client in clients:
        client.send(post())
    assert [client.read()[0] for client in clients] == [429] * len(clients)


def test_a_client_that_leaves_before_its_refusal_is_written_harms_nobody(classic):
    clients = [classic.connect() for _ in range(BURST + 20)]
    for client in clients:
        client.send(post())
    for client in clients[BURST:-1]:
        client.stream.close()
    assert clients[-1].read()[0] == 429


def test_an_early_refusal_of_infer_releases_its_key(background):
    key = ApiKey("a-secret-key", limits=Limits(max_requests=1))
    fast_infer = FastInfer(V2(None, Models(), SharedMemory(), ServerLimits()))
    with closing(ClassicWeb(background, api_keys=[key], open_other=fast_infer)) as web:
        web.inference.is_refusing = True
        web.inference.refusal = lambda *_: BUSY
        client = web.connect()
        for _ in range(2):  # the second would exceed the limit of the key
            client.send(post_to(b"{}", PATH, [b"authorization: Bearer a-secret-key"]))
            status, _, body = client.read()
            assert (status, json.loads(body)) == (429, {"error": str(BUSY)})


# --- the pace -----------------------------------------------------------------------------------


def test_refusals_have_a_burst_and_then_a_rate():
    pace = RefusalPace()
    delays = [pace.delay(100.0) for _ in range(BURST + 100)]
    assert delays[:BURST] == [0.0] * BURST
    assert delays == sorted(delays)
    assert delays[-1] == pytest.approx(100 / RATE, abs=TICK)


def test_the_pace_of_refusals_keeps_nobody_waiting_for_long():
    pace = RefusalPace()
    assert max(pace.delay(100.0) for _ in range(10_000)) <= MAX_DELAY
    assert pace.delay(100.0 + 2 * MAX_DELAY + BURST / RATE) == 0.0


def test_refusals_that_are_delayed_are_written_together():
    pace = RefusalPace()
    due = [round(100.01 + pace.delay(100.01), 6) for _ in range(BURST + 100)][BURST + 1 :]
    assert len(set(due)) <= 1 + 100 / RATE / TICK


def test_refusals_that_come_no_faster_than_their_pace_are_never_delayed():
    pace = RefusalPace()
    assert {pace.delay(100.0 + number / RATE) for number in range(1000)} == {0.0}
