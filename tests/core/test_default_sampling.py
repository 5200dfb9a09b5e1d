"""Whose sampling parameters apply where a request has none, and what is said of them."""

import pytest
from msgspec.structs import replace

from mindspore_serving.core.default_sampling import (
    SERVER_SAMPLING,
    DefaultSampling,
    choose_sampling,
    describe_sampling,
    suggest_max_tokens,
)
from tests.cards import CARD

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


def test_a_model_that_recommends_nothing_gets_the_servers_sampling():
    expected = DefaultSampling({**OFF, **SERVER_SAMPLING}, "server", ("top_k", "min_p"))
    assert choose_sampling({}, {}) == expected


def test_a_model_that_recommends_top_p_gets_nothing_of_the_server():
    assert choose_sampling({"top_p": 0.9}, {}) == DefaultSampling({**OFF, "top_p": 0.9}, "model")


def test_a_penalty_alone_is_no_recommendation_of_how_to_draw():
    expected = {**OFF, **SERVER_SAMPLING, "repetition_penalty": 1.1}
    found = choose_sampling({"repetition_penalty": 1.1}, {})
    assert (found.values, found.source) == (expected, "server")


def test_each_value_of_the_operator_replaces_the_models():
    found = choose_sampling({"temperature": 0.6, "top_p": 0.9}, {"top_p": 1.0})
    assert found == DefaultSampling({**OFF, "temperature": 0.6}, "operator")


def test_cuts_of_the_operator_are_no_cuts_of_the_server():
    assert choose_sampling({}, {"top_k": 20}).cuts == ("min_p",)


@pytest.mark.parametrize(
    ("values", "source", "expected"),
    [
        (
            SERVER_SAMPLING,
            "server",
            "sampling temperature 0.7, top_k 40, top_p 0.95, min_p 0.05 "
            "(defaults of the server: the model recommends none)",
        ),
        ({"temperature": 0.6, "top_k": 20}, "model",
         "sampling temperature 0.6, top_k 20 (recommended by the model)"),
        ({"temperature": 0, "top_k": 20}, "operator",
         "sampling temperature 0 (set by the operator)"),
    ],
)  # fmt: skip
def test_the_line_for_people_names_values_that_have_an_effect(values, source, expected):
    described = replace(CARD, sampling=tuple({**OFF, **values}.items()), sampling_source=source)
    assert describe_sampling(described) == expected


def test_the_line_for_people_names_the_limit_of_an_answer():
    described = replace(
        CARD, sampling=tuple(OFF.items()), sampling_source="operator", default_max_tokens=200
    )
    expected = "sampling temperature 1, max_tokens 200 (set by the operator)"
    assert describe_sampling(described) == expected


def test_an_upstream_has_no_line_about_sampling():
    assert describe_sampling(CARD) == ""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_model_len": 4096}, 1024),
        ({"max_model_len": 512}, 512),
        ({"max_model_len": 32768, "reasoning_format": "think"}, 8192),
        ({"max_model_len": 4096, "default_max_tokens": 2000}, 2000),
    ],
)
def test_chats_of_people_are_limited_by_operator_model_and_context(fields, expected):
    assert suggest_max_tokens(replace(CARD, **fields)) == expected
