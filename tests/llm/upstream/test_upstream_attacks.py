"""A hostile server: whatever it sends, its request alone fails, at once, and is said to be its."""

import os
import sys

import pytest

from mindspore_serving.core.llm_messages import Chunk, encode_events
from mindspore_serving.errors import Code, Overloaded, ServingError
from mindspore_serving.llm.upstream import budget
from tests.e2e.harness import memory
from tests.llm.upstream.asking import Asking, asking, prompt, text_of
from tests.llm.upstream.attacks import (
    EVENTS,
    FRAMES,
    GOOD,
    MODELS,
    ODD,
    SENT_NUMBERS,
    SLOW,
    by_prompt,
    choice,
    forever,
    sends,
)
from tests.llm.upstream.faulty import HEAD, faulty, piece, whole
from tests.waiting import eventually

MOST_GROWTH = 64 << 20


def fails(asked: Asking, name: str, *, is_stream: bool) -> ServingError:
    error = asked.ask(prompt(name, is_stream=is_stream))
    assert isinstance(error, ServingError), error
    return error


@pytest.fixture(autouse=True)
def recursion_limit():
    """Python's own: libraries of other tests raise it, and JSON is read as deep as it allows."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("group", [SENT_NUMBERS, EVENTS, FRAMES], ids=["numbers", "events", "http"])
def test_an_attack_of_an_upstream_ends_its_request_alone(group, is_stream: bool) -> None:
    script = by_prompt({name: script for name, (script, _) in group.items()})
    with faulty(script) as server, asking(url=server.url) as asked:
        assert text_of(asked.ask(prompt())) == "Good day"
        before = memory(os.getpid())
        for name, (_, text) in group.items():
            error = fails(asked, name, is_stream=is_stream)
            assert (error.code, text in str(error)) == (Code.UPSTREAM_FAILED, True), (name, error)
            assert len(str(error)) < 2000, name
        assert text_of(asked.ask(prompt())) == "Good day"
        assert memory(os.getpid()) - before < MOST_GROWTH


@pytest.mark.parametrize("name", SLOW)
def test_an_upstream_is_late_if_no_content_comes(name: str) -> None:
    script, text = SLOW[name]
    times = {"first_timeout": 0.2, "idle_timeout": 0.2}
    with faulty(script) as server, asking(url=server.url, **times) as asked:
        error = fails(asked, name, is_stream=True)
        assert (error.code, text in str(error)) == (Code.UPSTREAM_LATE, True), error


def test_an_upstream_that_never_completes_its_answer_has_a_time_in_all() -> None:
    script = forever(piece("more "), HEAD)
    with faulty(script) as server, asking(url=server.url, total_timeout=0.3) as asked:
        error = asked.ask(prompt(max_tokens=2**31))
        assert isinstance(error, ServingError)
        assert (error.code, "time is up" in str(error)) == (Code.UPSTREAM_LATE, True), error


def test_the_time_of_an_upstream_in_all_is_for_its_tries_together() -> None:
    with faulty(sends(whole(500, {"error": "no"}))) as server:
        with asking(url=server.url, retries=10, total_timeout=0.1) as asked:
            assert "500: no" in asked.fails(prompt())
        assert len(server.asked) == 1


@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_of_an_upstream_is_an_answer(name: str) -> None:
    with faulty(ODD[name]) as server, asking(url=server.url) as asked:
        events = asked.ask(prompt())
        assert text_of(events) == "Good day"
        assert isinstance(events, list)
        encode_events(events)


def test_an_upstreams_impossible_tokens_have_the_lowest_logprob_of_ours() -> None:
    script = ODD["lowest log-probabilities"]
    with faulty(script) as server, asking(url=server.url) as asked:
        events = asked.ask(prompt(logprobs=0))
        assert isinstance(events, list)
        first = next(one for one in events if isinstance(one, Chunk))
        assert first.tokens is not None
        assert first.tokens[0].logprob == -9999.0


@pytest.mark.parametrize("name", MODELS)
def test_a_hostile_list_of_models_leaves_the_upstream_unready(name: str) -> None:
    with faulty(sends(HEAD, *GOOD)) as server:
        good = server.models
        server.models = lambda: MODELS[name]
        with asking(url=server.url, model="far") as asked:
            assert "upstream" in asked.model.unready
            assert len(asked.model.unready) < 1000
            server.models = good
            asked.until(lambda: not asked.model.unready)
            assert text_of(asked.ask(prompt())) == "Good day"


def test_a_model_of_an_upstream_is_no_longer_than_a_number_of_ours() -> None:
    with faulty(sends(HEAD, *GOOD)) as server:
        server.models = lambda: whole(200, {"data": [{"id": "far", "max_model_len": 2**66}]})
        with asking(url=server.url) as asked:
            assert asked.model.card.max_model_len == 2**31 - 1


def test_plain_answers_of_an_upstream_have_room_together(monkeypatch) -> None:
    monkeypatch.setattr(budget.BufferQuota.__init__, "__defaults__", (4000, 3000))
    pieces = [choice(text="a" * 100) for _ in range(6)]
    with faulty(sends(HEAD, *pieces, *GOOD)) as server, asking(url=server.url) as asked:
        assert text_of(asked.ask(prompt(is_stream=False))) == "a" * 600 + "Good day"
        server.script = sends(HEAD, *pieces, *pieces, *GOOD)
        (refused,) = asked.ask(prompt(is_stream=False))  # type: ignore[misc]
        assert refused.reason == Overloaded.__name__.lower()
        assert "request a stream" in refused.text
        assert text_of(asked.ask(prompt())) == "a" * 1200 + "Good day"
        for _ in range(3):  # what was taken is free again
            server.script = sends(HEAD, *pieces, *GOOD)
            assert "Good day" in text_of(asked.ask(prompt(is_stream=False)))


def test_an_upstream_is_read_no_faster_than_its_answer_is_taken() -> None:
    """The connection takes what sockets hold, and no more: the upstream cannot write on."""
    with faulty(forever(piece("a" * 1000), HEAD)) as server, asking(url=server.url) as asked:
        before = memory(os.getpid())
        ends: list[object] = []
        asked.model.accept(
            prompt(max_tokens=100_000), lambda found, is_last: is_last and ends.append(found)
        )
        asked.model.accept(prompt(), lambda found, is_last: None)
        eventually(lambda: asked.model._outbox._is_full)
        assert memory(os.getpid()) - before < MOST_GROWTH
        asked.until(lambda: ends)
        assert "but an answer has at most" in str(ends[0])
