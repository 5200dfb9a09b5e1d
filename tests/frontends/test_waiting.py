"""How long a client waits for an answer (X-Request-Timeout), and until it asks again (Retry-After):
alike in every protocol."""

import json
from typing import Any

import pytest

from mindspore_serving.core.llm_messages import Refused, Tokenized
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply
from mindspore_serving.errors import (
    DeadlineExceeded,
    Overloaded,
    ServableUnavailable,
    ServingError,
    WorkerUnavailable,
)
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.models import LanguageModels, LanguageRules
from tests.frontends.http_serving import post
from tests.frontends.mounting import llm_serving_routes, openai_routes, tgi_routes
from tests.frontends.tgi.scripted import WHOLE, Server, begun

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
INPUTS = {"inputs": "Hi"}
CALLS: dict[str, tuple[Any, Any]] = {
    "/v1/chat/completions": (openai_routes, CHAT),
    "/v1/completions": (openai_routes, {"model": "tiny", "prompt": "Hi"}),
    "/generate": (tgi_routes, INPUTS),
    "/generate_stream": (tgi_routes, INPUTS),
    "/": (tgi_routes, INPUTS),
    "/models/tiny/generate": (llm_serving_routes, INPUTS),
    "/models/tiny/generate_stream": (llm_serving_routes, INPUTS),
}
TOKENS: dict[str, tuple[Any, Any]] = {
    "/tokenize": (tgi_routes, INPUTS),
    "/chat_tokenize": (tgi_routes, CHAT),
}
WITH_STATUS = [path for path in CALLS if path != "/generate_stream"]  # whose status is always 200


async def ask(path: str, *answers: Any, **headers: str) -> tuple[Server, Any]:
    routes, body = (CALLS | TOKENS)[path]
    server = Server(routes, *answers)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return server, await server.send("POST", path, json=body, headers=sent)


@pytest.mark.parametrize("path", CALLS)
async def test_a_generation_may_take_as_long_as_its_client_says(path: str) -> None:
    server, reply = await ask(path, WHOLE, x_request_timeout="2.5")
    assert (reply.status_code, server.inference.timeouts) == (200, [2.5])


@pytest.mark.parametrize("path", TOKENS)
async def test_tokens_may_take_as_long_as_their_client_says(path: str) -> None:
    server, reply = await ask(path, [Tokenized("", (), ())], x_request_timeout="2.5")
    assert (reply.status_code, server.inference.timeouts) == (200, [2.5])


@pytest.mark.parametrize("path", CALLS)
async def test_no_client_may_ask_for_more_time_than_the_server_gives(path: str) -> None:
    most = ServerLimits().request_timeout
    for headers in ({}, {"x_request_timeout": str(2 * most)}):
        server, _ = await ask(path, WHOLE, **headers)
        assert server.inference.timeouts == [most]


@pytest.mark.parametrize("path", WITH_STATUS)
async def test_a_time_that_is_none_is_refused(path: str) -> None:
    server, reply = await ask(path, WHOLE, x_request_timeout="soon")
    assert 400 <= reply.status_code < 500
    assert "X-Request-Timeout" in reply.text
    assert server.inference.sent == []


@pytest.mark.parametrize("path", WITH_STATUS)
async def test_a_generation_that_was_too_late_is_answered_504(path: str) -> None:
    _, reply = await ask(path, DeadlineExceeded("the deadline has passed"))
    assert reply.status_code == 504


@pytest.mark.parametrize("path", ["/models/tiny/generate", "/generate"])
async def test_a_deadline_is_504_also_after_a_part_was_generated(path: str) -> None:
    routes, body = CALLS[path]
    server = Server(routes, WHOLE)
    server.inference.fails_with = DeadlineExceeded("the deadline has passed")
    server.inference.answers = [[begun()]]
    assert (await server.send("POST", path, json=body)).status_code == 504


AGAIN = [
    (Overloaded("too much waits"), 429, "1"),
    (Overloaded("too much waits", 2.2), 429, "3"),
    ([Refused("overloaded", "too much waits", retry_after=7.0)], 429, "7"),
    (ServableUnavailable("its workers are being started", 0.2), 503, "1"),
    (ServableUnavailable("its workers are being started", 12.0), 503, "12"),
]


@pytest.mark.parametrize("path", WITH_STATUS)
@pytest.mark.parametrize(("answer", "status", "seconds"), AGAIN, ids=lambda value: str(value)[:30])
async def test_who_may_ask_again_is_told_when(
    path: str, answer: Any, status: int, seconds: str
) -> None:
    _, reply = await ask(path, answer)
    assert (reply.status_code, reply.headers.get("retry-after")) == (status, seconds)


@pytest.mark.parametrize("path", [b"/model/add:m", b"/my-model/add:m"])
@pytest.mark.parametrize(
    "case",
    [
        (Overloaded("too much waits", 2.2), 429, "3"),
        (ServableUnavailable("its workers are being started"), 503, "1"),
        (WorkerUnavailable("the worker died"), 503, "1"),
        (DeadlineExceeded("the deadline has passed"), 504, None),
        (ServingError("it failed"), 500, None),
    ],
    ids=lambda case: str(case[0]),
)
def test_clients_of_classic_models_are_told_too(web, web_with_codes, path, case):
    error, status, seconds = case
    every = Reply([b"", b""], faults=[error, error])
    for server, expected in ((web, 200), (web_with_codes, status)):
        server.inference.holds = True
        for number, reply in enumerate((Reply(failure=error), every), 1):
            client = server.connect().send(post(path=path))
            server.inference.answer(server.inference.wait_for(number), reply)
            found, headers, body = client.read()
            assert (found, headers.get("retry-after")) == (expected, seconds)
            assert str(error) in json.dumps(json.loads(body))


def test_a_partly_good_answer_has_no_retry_after(web_with_codes):
    web_with_codes.inference.holds = True
    client = web_with_codes.connect().send(post())
    reply = Reply([b"{}", b""], faults=[None, Overloaded("too much waits")])
    web_with_codes.inference.answer(web_with_codes.inference.wait_for(1), reply)
    status, headers, _ = client.read()
    assert (status, headers.get("retry-after")) == (200, None)


def test_who_asks_too_early_for_health_is_told_when_to_ask_again(web):
    web.control.is_ready = False
    status, headers, _ = web.connect().send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").read()
    assert (status, headers["retry-after"]) == (503, "1")


async def test_a_server_may_give_less_time_to_all_requests() -> None:
    server = Server(tgi_routes, WHOLE)
    rules = LanguageRules(limits=ServerLimits(request_timeout=9))
    models = LanguageModels(server.inference, server.control, rules)
    state = AppState(models, server.inference, server.control, 10_000)
    assert (await Server(lambda _: tgi_routes(state), WHOLE).post("/generate", INPUTS)).is_success
    assert server.inference.timeouts == [9]
