"""Sampling that a request leaves out is as the model's authors recommend."""

import pytest
from msgspec.structs import replace

from tests.frontends.openai.serving import CARD

MESSAGES = [{"role": "user", "content": "Hi"}]
RECOMMENDED = (("temperature", 0.6), ("top_p", 0.9), ("top_k", 20))
ROUTES = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
}


@pytest.fixture
def recommending(web):
    web.control.card = replace(CARD, sampling=RECOMMENDED)
    return web


@pytest.mark.parametrize("path", ROUTES)
def test_missing_parameters_have_the_models_defaults(recommending, path):
    body = {"model": "toy", **ROUTES[path], "top_p": 0.5}
    answer = recommending.call("POST", path, body)
    assert answer.status == 200
    params = recommending.sent.params
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.5, 20)


def test_a_response_repeats_the_parameters_used(recommending):
    answer = recommending.call("POST", "/v1/responses", {"model": "toy", "input": "Hi"})
    assert (answer.json["temperature"], answer.json["top_p"]) == (0.6, 0.9)


def test_null_parameters_have_the_models_defaults(recommending):
    body = {"model": "toy", "messages": MESSAGES, "temperature": None}
    recommending.call("POST", "/v1/chat/completions", body)
    assert recommending.sent.params.temperature == 0.6


@pytest.mark.parametrize("path", ROUTES)
def test_the_operators_limit_applies_if_max_tokens_is_missing(web, path):
    web.control.card = replace(CARD, default_max_tokens=9)
    assert web.call("POST", path, {"model": "toy", **ROUTES[path]}).status == 200
    assert web.sent.params.max_tokens == 9


@pytest.mark.parametrize("path", ROUTES)
def test_without_a_limit_the_protocols_own_applies(web, path):
    assert web.call("POST", path, {"model": "toy", **ROUTES[path]}).status == 200
    expected = 16 if path == "/v1/completions" else None  # None: to the end of the context
    assert web.sent.params.max_tokens == expected


def test_a_requested_temperature_of_1_is_1(recommending):
    body = {"model": "toy", "messages": MESSAGES, "temperature": 1, "top_p": 1}
    recommending.call("POST", "/v1/chat/completions", body)
    assert (recommending.sent.params.temperature, recommending.sent.params.top_p) == (1, 1)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({}, (40, 0.05)),
        ({"temperature": 1}, (40, 0.05)),
        ({"top_p": 1}, (40, 0.05)),
        ({"temperature": 1, "top_p": 1}, (0, 0.0)),
        ({"temperature": 1, "top_p": 1, "top_k": 5}, (5, 0.0)),
    ],
)
def test_temperature_and_top_p_together_turn_the_servers_cuts_off(web, sent, expected):
    sampling = (("temperature", 0.7), ("top_k", 40), ("top_p", 0.95), ("min_p", 0.05))
    web.control.card = replace(CARD, sampling=sampling, sampling_cuts=("top_k", "min_p"))
    web.call("POST", "/v1/chat/completions", {"model": "toy", "messages": MESSAGES, **sent})
    assert (web.sent.params.top_k, web.sent.params.min_p) == expected
