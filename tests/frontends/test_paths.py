"""Paths and verbs that no route takes, and the ids of requests: what every HTTP answer has."""

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import closing

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mindspore_serving import log
from mindspore_serving.aio import BackgroundLoop
from mindspore_serving.core.service import Reply
from mindspore_serving.errors import StageFailed
from mindspore_serving.frontends.origins import OriginPolicy
from tests.frontends.http_serving import GET, Web, post
from tests.waiting import PATIENCE

MADE = re.compile(r"req_[0-9a-f]{24}")


async def _models(_: Request) -> Response:
    return Response(b"models")


async def _chat(request: Request) -> Response:
    log.error("a line about it")
    return Response(await request.body())


ROUTES: list[BaseRoute] = [
    Route("/v1/models", _models, methods=["GET"]),
    Route("/v1/models/{name:path}", _models, methods=["GET"]),
    Route("/v1/chat/completions", _chat, methods=["POST"]),
    Route("/generate", _chat, methods=["POST"]),
]


@pytest.fixture(scope="module")
def web(background: BackgroundLoop) -> Iterator[Web]:
    with closing(Web(background, routes=ROUTES, origins=OriginPolicy("0.0.0.0"))) as made:
        yield made


def ask(web: Web, verb: str, path: str, *headers: str) -> tuple[int, dict[str, str], bytes]:
    """The answer to a request with an empty object as its body."""
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=PATIENCE)
    with closing(connection):
        fields = dict(one.split(": ", 1) for one in headers)
        connection.request(verb, path, None if verb == "HEAD" else b"{}", fields)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, answer.read()


# --- unknown paths ------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/v1/assistants", "/v1/images/generations", "/v1", "/v1/"])
def test_an_unknown_path_of_openai_is_404_in_its_form(web: Web, verb: str, path: str) -> None:
    status, headers, body = ask(web, verb, path)
    assert (status, headers["content-type"]) == (404, "application/json")
    error = json.loads(body)["error"]
    assert error == {
        "message": f"there is no route {verb} {path.rstrip('/')}",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }


def test_a_base_url_without_v1_is_told_in_the_form_of_openai(web: Web) -> None:
    status, _, body = ask(web, "POST", "/chat/completions")
    assert status == 404
    message = json.loads(body)["error"]["message"]
    assert message.startswith("there is no route POST /chat/completions, but /v1/chat/completions")


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/v1/messages", {"type", "error", "request_id"}),
        ("/api/chat/nothing", {"error"}),
        ("/serving/nothing", {"detail"}),
        ("/models", {"detail"}),
        ("/healthz", {"error", "error_type"}),
        ("/generate/more", {"error", "error_type"}),
        ("/modelx", {"error", "error_type"}),
        ("/servables/add", {"error_msg"}),
    ],
)
def test_an_unknown_path_is_404_in_the_form_of_its_protocol(
    web: Web, path: str, form: set[str]
) -> None:
    for verb in ("GET", "POST"):
        status, _, body = ask(web, verb, path)
        assert (status, json.loads(body).keys()) == (404, form)


def test_a_probe_of_a_wrong_path_is_red(web: Web) -> None:
    for path in ("/healthz", "/health/live", "/ready", "/v1/health", "/my-model/add"):
        assert ask(web, "GET", path)[0] == 404
        assert ask(web, "HEAD", path)[0] == 404


def test_the_classic_texts_stay_below_model(web: Web) -> None:
    refused = "http message only support POST right now"
    for path, text in (("/model/add:m", refused), ("/model/", refused), ("/model/x", refused)):
        status, _, body = ask(web, "GET", path)
        assert (status, json.loads(body)) == (200, {"error_msg": text})
    status, _, body = ask(web, "POST", "/model/add")
    assert (status, [*json.loads(body)]) == (200, ["error_msg"])


def test_a_classic_url_with_a_prefix_yields_to_protocol_paths(web: Web) -> None:
    assert ask(web, "POST", "/my-model/add:m")[0] == 200
    assert ask(web, "POST", "/api/model/add:m")[0] == 200  # Ollama's paths are others
    assert ask(web, "POST", "/v1/model/add:m")[0] == 404
    assert ask(web, "GET", "/my-model/add:m")[0] == 405


def test_with_status_codes_a_classic_path_has_405(background: BackgroundLoop) -> None:
    with closing(Web(background, use_status_codes=True)) as web:
        status, headers, body = ask(web, "GET", "/model/add:m")
        assert (status, headers["allow"], [*json.loads(body)]) == (405, "POST", ["error_msg"])
        assert ask(web, "OPTIONS", "/model/add:m")[0] == 204


# --- verbs and slashes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("HEAD", "/generate", "POST"),
        ("DELETE", "/health", "GET, HEAD"),
        ("POST", "/readyz", "GET, HEAD"),
        ("BREW", "/v1/models", "GET, HEAD"),
    ],
)
def test_a_wrong_verb_gets_the_list_of_allowed_verbs(
    web: Web, verb: str, path: str, allowed: str
) -> None:
    status, headers, _ = ask(web, verb, path)
    if verb == "BREW":  # which is no verb of HTTP
        assert status == 400
    else:
        assert (status, headers["allow"]) == (405, allowed)


def test_options_names_the_verbs(web: Web) -> None:
    for path, allowed in (("/v1/models", "GET, HEAD, OPTIONS"), ("/generate", "POST, OPTIONS")):
        status, headers, body = ask(web, "OPTIONS", path)
        assert (status, headers["allow"], body) == (204, allowed, b"")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/x", "/health", "/livez", "/metrics"])
def test_head_is_get_without_the_body(web: Web, path: str) -> None:
    found = [ask(web, verb, path) for verb in ("GET", "HEAD")]
    (status, fields, body), (headless, others, nothing) = found
    assert (status, headless) == (200, 200)
    assert int(fields["content-length"]) == len(body)
    if path != "/metrics":  # its numbers, and so its length, are others each time
        assert others["content-length"] == fields["content-length"]
    assert int(others["content-length"]) > 0
    assert nothing == b""


def test_a_last_slash_changes_nothing(web: Web) -> None:
    assert ask(web, "GET", "/v1/models/")[0] == 200
    assert ask(web, "GET", "/livez/")[0] == 200
    assert ask(web, "POST", "/v1/chat/completions/")[2] == b"{}"


# --- web pages of other sites -------------------------------------------------------------------


def test_a_preflight_lists_the_allowed_methods(background: BackgroundLoop) -> None:
    rules = OriginPolicy("0.0.0.0", (), ["https://a.example"])
    key = "a-key-that-is-long-enough"
    with closing(Web(background, routes=ROUTES, origins=rules, api_keys=[key])) as web:
        for verb in ("GET", "POST", "DELETE", "HEAD"):
            status, headers, _ = ask(
                web,
                "OPTIONS",
                "/v1/chat/completions",
                "Origin: https://a.example",
                f"Access-Control-Request-Method: {verb}",
                "Access-Control-Request-Headers: authorization, content-type, x-request-id",
            )
            assert (status, headers["access-control-allow-origin"]) == (200, "https://a.example")
            assert verb in headers["access-control-allow-methods"]
            assert "authorization" in headers["access-control-allow-headers"]
        asked = ask(web, "GET", "/v1/nothing", "Origin: https://a.example")
        assert (asked[0], asked[1]["access-control-allow-origin"]) == (401, "https://a.example")


def test_a_preflight_without_the_option_allows_nothing(web: Web) -> None:
    origin = ("Origin: https://a.example", "Access-Control-Request-Method: POST")
    status, headers, _ = ask(web, "OPTIONS", "/generate", *origin)
    assert status in (204, 403)
    assert not [name for name in headers if name.startswith("access-control")]


# --- ids ----------------------------------------------------------------------------------------

EVERYWHERE = [("POST", "/model/add:m"), ("GET", "/health"), ("GET", "/v1/nothing")]


@pytest.mark.parametrize(("verb", "path"), EVERYWHERE)
def test_every_answer_has_an_id_of_its_own(web: Web, verb: str, path: str) -> None:
    found = [ask(web, verb, path)[1]["x-request-id"] for _ in range(3)]
    assert all(map(MADE.fullmatch, found))
    assert len(set(found)) == 3


@pytest.mark.parametrize(("verb", "path"), EVERYWHERE)
def test_an_id_that_the_client_gives_comes_back(web: Web, verb: str, path: str) -> None:
    for given in ("a", "trace-7/a.B:c+d=e_f", "x" * 128):
        headers = ask(web, verb, path, f"X-Request-Id: {given}")[1]
        assert headers["x-request-id"] == given
    for given in ("two words", "x" * 129, "", "é", "a;b", "<script>"):
        headers = ask(web, verb, path, f"X-Request-Id: {given}")[1]
        assert MADE.fullmatch(headers["x-request-id"])


def test_data_that_is_not_http_gets_an_id(web: Web) -> None:
    status, headers, _ = web.connect().send(b"no http at all\r\n\r\n").read()
    assert (status, bool(MADE.fullmatch(headers["x-request-id"]))) == (400, True)


def test_a_refused_call_has_the_id(web: Web) -> None:
    headers = web.connect().send(post(b"", headers=[b"X-Request-Id: mine"]) + GET).read()[1]
    assert headers["x-request-id"] == "mine"


def test_lines_of_the_log_have_the_id(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    ask(web, "POST", "/generate", "X-Request-Id: trace-1")
    assert "] trace-1: a line about it\n" in capsys.readouterr().err


def test_the_log_names_the_call_that_met_a_bug(
    background: BackgroundLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Web(background)) as web:
        web.inference.submit = _broken
        assert ask(web, "POST", "/model/add:m", "X-Request-Id: trace-2")[0] == 200
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("[ERROR]")]
    assert len(lines) == 1
    assert "] trace-2: serving a request: " in lines[0]


def test_a_failure_of_a_servable_is_answered_with_the_id(web: Web) -> None:
    web.inference.holds = True
    client = web.connect().send(post(headers=[b"X-Request-Id: trace-3"]))
    call = web.inference.wait_for(len(web.inference.asked) or 1)
    web.inference.answer(call, Reply(failure=StageFailed("no")))
    web.inference.holds = False
    assert client.read()[1]["x-request-id"] == "trace-3"


def _broken(*_: object) -> None:
    raise KeyError("a bug")
