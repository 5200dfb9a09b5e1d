"""Limits of tenants by a clock of the test: requests, tokens, days, and their headers."""

import pytest

from mindspore_serving.frontends.tenants.limits import (
    DAY,
    LimitLeft,
    LimitReached,
    Limits,
    LimitState,
    to_anthropic_headers,
    to_headers,
)

NOON = 20_000 * DAY + DAY / 2


def refused(call, *arguments) -> LimitReached:
    with pytest.raises(LimitReached) as caught:
        call(*arguments)
    return caught.value


def test_requests_in_flight_are_limited_until_they_end():
    state, limits = LimitState("Anna"), Limits(max_requests=1)
    state.admit(limits, NOON)
    error = refused(state.admit, limits, NOON)
    assert str(error).startswith("the API key 'Anna' has 1 request in flight, which is its limit")
    assert (error.limit, state.refusals) == ("max_requests", {"max_requests": 1})
    state.num_running -= 1
    state.admit(limits, NOON)


def test_requests_per_minute_come_back_steadily():
    state, limits = LimitState("Anna"), Limits(requests_per_minute=2)
    state.admit(limits, NOON)
    state.admit(limits, NOON)
    assert refused(state.admit, limits, NOON).retry_after == 30.0
    assert refused(state.admit, limits, NOON + 15).retry_after == 15.0
    state.admit(limits, NOON + 30)
    assert refused(state.admit, limits, NOON + 30).retry_after == 30.0


def test_tokens_of_a_long_answer_are_a_debt_that_later_requests_wait_for():
    state, limits = LimitState("Anna"), Limits(tokens_per_minute=60)
    state.check_tokens(limits, NOON)
    state.charge(limits, 100, NOON)
    assert refused(state.check_tokens, limits, NOON).retry_after == 41.0
    state.check_tokens(limits, NOON + 41)


def test_tokens_of_a_day_end_at_midnight():
    state, limits = LimitState("Anna"), Limits(tokens_per_day=10)
    state.charge(limits, 9, NOON)
    state.check_tokens(limits, NOON)
    state.charge(limits, 1, NOON)
    error = refused(state.check_tokens, limits, NOON + 60)
    assert (error.limit, error.retry_after) == ("tokens_per_day", DAY / 2 - 60)
    state.check_tokens(limits, NOON + DAY / 2)


def test_a_clock_that_is_set_back_gives_no_tokens_and_takes_none():
    state, limits = LimitState("Anna"), Limits(requests_per_minute=1)
    state.admit(limits, NOON)
    refused(state.admit, limits, NOON - 3600)
    assert refused(state.admit, limits, NOON - 3570).retry_after == 30.0


def test_a_raised_limit_counts_at_once():
    state = LimitState("Anna")
    state.admit(Limits(max_requests=1), NOON)
    refused(state.admit, Limits(max_requests=1), NOON)
    state.admit(Limits(max_requests=2), NOON)
    state.charge(Limits(tokens_per_day=5), 5, NOON)
    state.check_tokens(Limits(tokens_per_day=6), NOON)


def test_headers_tell_of_each_limit():
    state = LimitState("Anna")
    limits = Limits(requests_per_minute=60, tokens_per_minute=600, tokens_per_day=1000)
    state.admit(limits, NOON)
    state.charge(limits, 100, NOON)
    assert dict(to_headers(state.allowances(limits, NOON))) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "500",
        "x-ratelimit-reset-tokens": "10s",
        "x-ratelimit-limit-tokens-day": "1000",
        "x-ratelimit-remaining-tokens-day": "900",
        "x-ratelimit-reset-tokens-day": "43200s",
    }


def test_headers_of_anthropic_have_a_time():
    left = LimitLeft("tokens", 600, 500, 9.5)
    assert to_anthropic_headers((left,), 1_700_000_000.0) == (
        ("anthropic-ratelimit-tokens-limit", "600"),
        ("anthropic-ratelimit-tokens-remaining", "500"),
        ("anthropic-ratelimit-tokens-reset", "2023-11-14T22:13:30Z"),
    )
