"""Other servers that break, hang or lie: what the client is told, and what is tried again."""

import threading
from collections.abc import Iterable

import pytest

from mindspore_serving.core.llm_messages import Chunk, Finished, Refused, Started, Tokenize
from mindspore_serving.errors import ServableUnavailable, ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.upstream.connection import MAX_BODY, MAX_HEAD, MAX_LINE
from mindspore_serving.llm.upstream.options import read_options
from tests.llm.upstream.asking import Asking, asking, prompt, text_of
from tests.llm.upstream.faulty import (
    DONE,
    HEAD,
    Asked,
    Script,
    event,
    faulty,
    piece,
    usage,
    whole,
)
from tests.ports import free_port
from tests.waiting import PATIENCE

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def sends(*pieces: bytes) -> Script:
    return lambda _: pieces


def good(_: Asked) -> Iterable[bytes]:
    return HEAD, piece("Good "), piece("day", "stop"), usage(3, 2), DONE


BROKEN = {
    "closed at once": (sends(), "closed the connection before its reply was complete"),
    "no HTTP": (sends(b"SSH-2.0-OpenSSH\r\n\r\n"), "does not speak HTTP"),
    "endless head": (
        sends(b"HTTP/1.1 200 OK\r\n", b"A: " + b"a" * (2 * MAX_HEAD)),
        "a head of over 65,536 bytes",
    ),
    "compressed": (sends(whole(200, b"", "Content-Encoding: gzip")), "a compressed body"),
    "redirect": (
        sends(whole(307, b"", "Location: http://other/v1")),
        "a redirect to http://other/v1",
    ),
    "status 500": (sends(whole(500, {"error": {"message": "it burns"}})), "500: it burns"),
    "status 404": (sends(whole(404, {"detail": "no such model"})), "404: no such model"),
    "endless error": (
        sends(b"HTTP/1.1 500 X\r\n\r\n", b"a" * (MAX_BODY + 1)),
        "a body of over 1,048,576 bytes",
    ),
    "empty": (sends(whole(200, b"")), "ended its reply early"),
    "no end": (sends(HEAD, piece("Good")), "ended its reply early"),
    "cut inside a chunk": (sends(CHUNKED, b"ff\r\ndata: "), "before its reply was complete"),
    "endless line": (sends(HEAD, b"data: " + b"a" * (MAX_LINE + 7)), "a line of over 1,048,576"),
    "no JSON": (sends(HEAD, b"data: {oops}\n\n"), "sent an invalid chunk"),
    "nested": (sends(HEAD, b"data: " + b"[" * 50_000 + b"\n\n"), "sent an invalid chunk"),
    "no object": (sends(HEAD, b"data: 7\n\n"), "sent an invalid chunk"),
    "wrong type": (sends(HEAD, event(choices=[{"text": 7}])), "sent an invalid chunk"),
    "unknown answer": (sends(HEAD, piece("a", index=5)), "answer 5, which is not open"),
    "piece behind the end": (sends(HEAD, piece("a", "stop"), piece("b")), "answer 0, which is not"),
    "error event": (sends(HEAD, piece("a"), event(error={"message": "lost"})), "it failed: lost"),
    "nameless call": (
        sends(HEAD, event(choices=[{"delta": {"tool_calls": [{"index": 0}]}}])),
        "a tool call without a name",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_the_error_names_the_fault_of_a_broken_server(case: str) -> None:
    script, text = BROKEN[case]
    with faulty(script) as server, asking(url=server.url) as asked:
        assert text in asked.fails(prompt())
        server.script = good
        assert text_of(asked.ask(prompt())) == "Good day"


def test_the_operators_sampling_is_in_the_card_of_an_upstream() -> None:
    with faulty(good) as server:
        with asking(url=server.url) as asked:
            assert (asked.model.card.sampling, asked.model.card.sampling_source) == ((), "")
        config = EngineConfig(default_temperature=0.3, default_max_tokens=50, max_model_len=60)
        with asking(config, url=server.url) as asked:
            card = asked.model.card
            assert card.defaults == {"temperature": 0.3, "max_tokens": 50}
            assert (card.sampling_source, card.max_model_len) == ("operator", 60)


def test_an_answer_has_its_events_in_order() -> None:
    with faulty(good) as server, asking(url=server.url) as asked:
        assert asked.model.card.max_model_len == 77
        found = asked.ask(prompt())
        assert not isinstance(found, ServingError)
        assert [type(one) for one in found] == [Started, Chunk, Chunk, Finished]
        started, *_, finished = asked.ask(prompt(is_stream=False))  # type: ignore[misc]
        assert (started, finished) == (Started(3, 0), Finished(3, 0, 2))


def test_a_refusal_is_the_clients_with_the_words_of_the_server() -> None:
    script = sends(whole(400, {"error": {"message": "temperature is hot"}}))
    with faulty(script) as server, asking(url=server.url, retries=3) as asked:
        assert asked.ask(prompt()) == [Refused("input", "temperature is hot")]
        assert len(server.asked) == 1


def test_a_busy_server_is_overloaded_with_its_retry_after() -> None:
    script = sends(whole(429, {"error": "slow down"}, "Retry-After: 7"))
    with faulty(script) as server, asking(url=server.url, retries=1) as asked:
        (refused,) = asked.ask(prompt())  # type: ignore[misc]
        assert isinstance(refused, Refused)
        assert (refused.reason, refused.retry_after) == ("overloaded", 7.0)
        assert len(server.asked) == 2


@pytest.mark.parametrize("first", ["closed at once", "status 500", "empty", "no JSON"])
def test_a_request_without_an_answer_yet_is_sent_again(first: str) -> None:
    scripts = [BROKEN[first][0], good]
    with faulty(lambda asked: scripts.pop(0)(asked)) as server:
        with asking(url=server.url, retries=1) as asked:
            assert text_of(asked.ask(prompt())) == "Good day"
        assert len(server.asked) == 2
        assert server.asked[0].body == server.asked[1].body


def test_a_request_that_has_an_answer_is_not_sent_again() -> None:
    with faulty(sends(HEAD, piece("Good"))) as server:
        with asking(url=server.url, retries=5) as asked:
            assert "ended its reply early" in asked.fails(prompt())
        assert len(server.asked) == 1


def test_a_server_that_says_nothing_is_given_up() -> None:
    is_over = threading.Event()

    def silent(_: Asked) -> Iterable[bytes]:
        is_over.wait(PATIENCE)
        yield b""

    def stuck(_: Asked) -> Iterable[bytes]:
        yield HEAD + piece("Good")
        is_over.wait(PATIENCE)

    with faulty(silent) as server:
        with asking(url=server.url, first_timeout=0.05, idle_timeout=0.05) as asked:
            assert "sent no content for 0.05 s" in asked.fails(prompt())
        server.script = stuck
        with asking(url=server.url, idle_timeout=0.05) as asked:
            assert "sent no content for 0.05 s" in asked.fails(prompt())
        is_over.set()


def test_a_client_that_leaves_closes_the_connection() -> None:
    def endless(asked: Asked) -> Iterable[bytes]:
        yield HEAD
        while not asked.closed.is_set():
            yield piece("more ")

    with faulty(endless) as server, asking(url=server.url) as asked:
        came: list[object] = []
        request_id = asked.model.accept(prompt(), lambda found, _: came.append(found))
        asked.until(lambda: came)
        asked.model.cancel(request_id)
        assert server.asked[0].closed.wait(PATIENCE)
        asked.model.collect()
        assert asked.model.num_open == 0
        assert asked.model.counts()[0] == {"abort": 1}


def test_an_unreachable_server_is_unready_until_reachable() -> None:
    port = free_port()
    with asking(url=f"http://127.0.0.1:{port}/v1", connect_timeout=PATIENCE) as asked:
        assert "cannot be reached" in asked.model.unready
        error = asked.ask(prompt())
        assert isinstance(error, ServableUnavailable)
        with faulty(good, port):
            asked.until(lambda: not asked.model.unready)
            assert text_of(asked.ask(prompt())) == "Good day"
        asked.until(lambda: asked.model.unready)
        assert "cannot be reached" in asked.fails(prompt())


def test_a_server_with_several_models_is_unready_without_a_name() -> None:
    with faulty(good) as server:
        server.models = lambda: whole(200, {"data": [{"id": "a"}, {"id": "b"}]})
        with asking(url=server.url) as asked:
            assert "lists a, b: name one" in asked.model.unready
        with asking(url=server.url, model="b") as asked:
            assert asked.model.unready == ""
            asked.ask(prompt())
        assert server.asked[0].body["model"] == "b"


def test_lists_of_models_that_cannot_be_read_are_no_crash() -> None:
    with faulty(good) as server, asking(url=server.url, model="b") as asked:
        for answer, text in (
            (whole(200, b"<html>"), "list of models is invalid"),
            (whole(401, {"error": "who?"}), "refuses the key (401)"),
            (whole(503, {"error": "starting"}), "503: starting"),
        ):
            server.models = lambda answer=answer: answer  # type: ignore[misc]
            asked.until(lambda text=text: text in asked.model.unready)
        server.models = lambda: whole(404, b"")  # it has no such list
        asked.until(lambda: not asked.model.unready)


def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-very-secret"
    monkeypatch.setenv("FAR_KEY", key)
    with faulty(sends(whole(500, {"error": f"{key} is unknown"}))) as server:
        with asking(url=server.url, key_variable="FAR_KEY") as asked:
            assert asked.fails(prompt()).endswith("500: *** is unknown")
            server.script = sends(whole(400, {"error": f"{key} is wrong"}))
            assert asked.ask(prompt()) == [Refused("input", "*** is wrong")]
            assert key not in repr(asked.model.card)
        assert server.asked[0].headers["authorization"] == f"Bearer {key}"


def test_requests_that_generate_nothing_are_refused() -> None:
    with faulty(good) as server, asking(url=server.url) as asked:
        (refused,) = asked.ask(Tokenize(prompt="a"))  # type: ignore[misc]
        assert refused == Refused("input", "an upstream cannot tokenize")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "ftp://far/v1"}, "url is 'ftp://far/v1', expected http:"),
        ({"url": "http://key@far/v1"}, "url is a URL with @ or ?, expected"),
        ({"url": "http://far/v1?key=1"}, "expected http:"),
        ({"url": "http://far:x/v1"}, "expected http:"),
        ({"url": "http://far/v1\r\nA: b"}, "expected http:"),
        ({"url": "http://far/v1", "retires": 1}, "no option 'retires'"),
        ({"url": "http://far/v1", "retries": -1}, "retries"),
        ({"url": "http://far/v1", "dialect": "french"}, "dialect is 'french'"),
        ({}, "url"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], text: str) -> None:
    with pytest.raises(StartError) as error:
        read_options(options)
    assert text in str(error.value)
    assert "key@" not in str(error.value)


def test_a_key_that_is_not_there_is_a_start_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "a\r\nb"):
        monkeypatch.setenv("FAR_KEY", value)
        with pytest.raises(StartError, match="FAR_KEY"):
            Asking(EngineConfig(), url="http://far", key_variable="FAR_KEY")
