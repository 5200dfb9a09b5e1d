"""A model of several upstreams that fail, hang, are busy, go and come back."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.core.llm_messages import Chunk, Refused
from mindspore_serving.core.upstream_report import STATES, UpstreamReport
from mindspore_serving.errors import ServableUnavailable, ServingError, StartError, UpstreamFailed
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.upstream.options import read_options
from tests.llm.upstream.asking import Asking, asking, prompt, text_of
from tests.llm.upstream.faulty import DONE, HEAD, Asked, Faulty, Script, faulty, piece, usage, whole
from tests.ports import free_port
from tests.waiting import PATIENCE

BROKEN = whole(500, {"error": "it burns"})


def saying(text: str) -> Script:
    return lambda _: (HEAD, piece(text, "stop"), usage(3, 1), DONE)


def sends(*pieces: bytes) -> Script:
    return lambda _: pieces


@contextmanager
def fleet(*scripts: Script, **options: Any) -> Iterator[tuple[Asking, list[Faulty]]]:
    """A model over a server for each of `scripts`."""
    with ExitStack() as stack:
        servers = [stack.enter_context(faulty(script)) for script in scripts]
        urls = [server.url for server in servers]
        options = {"retries": 2, "slow_start": 0, **options}
        yield stack.enter_context(asking(upstreams=urls, **options)), servers


def report_of(asked: Asking, server: Faulty) -> UpstreamReport:
    rows = {row.name: row for row in asked.model.upstreams}
    return rows[server.url.removesuffix("/v1")]


def has_state(asked: Asking, server: Faulty, state: str) -> Callable[[], bool]:
    assert state in STATES
    return lambda: report_of(asked, server).state == state


def has_served(asked: Asking, server: Faulty, count: int) -> Callable[[], bool]:
    """Whether so many requests have ended on `server`."""

    def look() -> bool:
        row = report_of(asked, server)
        return row.requests >= count and row.open == 0

    return look


def test_idle_upstreams_take_turns_and_are_counted() -> None:
    with fleet(saying("a"), saying("b")) as (asked, servers):
        assert sorted(text_of(asked.ask(prompt(f"p{i}"))) for i in range(6)) == [*"aaabbb"]
        for server in servers:
            asked.until(has_served(asked, server, 3))
        rows = [report_of(asked, server) for server in servers]
        counts = [(row.requests, row.errors, row.open, row.outstanding) for row in rows]
        assert counts == [(3, 0, 0, 0)] * 2


@pytest.mark.parametrize(
    "script",
    [sends(BROKEN), sends(), sends(HEAD), sends(HEAD, b"data: {oops}\n\n")],
    ids=["500", "closed", "empty", "no JSON"],
)
def test_a_request_without_an_answer_goes_to_another_upstream(script: Script) -> None:
    with fleet(script, saying("b"), retries=1, circuit_failures=1) as (asked, servers):
        texts = {text_of(asked.ask(prompt(f"p{i}"))) for i in range(4)}
        assert texts == {"b"}
        assert len(servers[0].asked) == 1  # then its circuit is open
        asked.until(has_state(asked, servers[0], "open"))
        assert report_of(asked, servers[0]).errors == 1


def test_an_answer_that_has_begun_is_not_sent_again() -> None:
    broken = sends(HEAD, piece("Good"))
    with fleet(broken, broken, retries=5) as (asked, servers):
        failed = asked.ask(prompt())
        assert isinstance(failed, UpstreamFailed)
        assert "ended its reply early" in str(failed)
        assert sum(len(server.asked) for server in servers) == 1


def test_a_refusal_of_the_request_is_no_fault_of_the_upstream() -> None:
    refused = sends(whole(400, {"error": {"message": "temperature is hot"}}))
    with fleet(refused, refused, circuit_failures=1) as (asked, servers):
        for _ in range(4):
            assert asked.ask(prompt()) == [Refused("input", "temperature is hot")]
        assert [len(server.asked) for server in servers] == [2, 2]
        assert {row.state for row in asked.model.upstreams} == {"ready"}


def test_an_open_circuit_is_tried_again_and_closes() -> None:
    with fleet(sends(BROKEN), sends(BROKEN), circuit_failures=1, circuit_timeout=0.05) as (
        asked,
        (first, second),
    ):
        failed = asked.ask(prompt())
        assert isinstance(failed, ServingError)
        assert asked.model.unready == ""  # a request may close a circuit
        first.script = second.script = saying("back")
        answers: list[Any] = []
        while not answers or isinstance(answers[-1], ServingError):
            answers.append(asked.ask(prompt()))
        assert text_of(answers[-1]) == "back"


def test_a_busy_upstream_rests_until_its_retry_after() -> None:
    busy = sends(whole(503, {"error": "stopping"}, "Retry-After: 50"))
    with fleet(busy, saying("b"), circuit_failures=1) as (asked, servers):
        assert {text_of(asked.ask(prompt(f"p{i}"))) for i in range(6)} == {"b"}
        assert len(servers[0].asked) == 1
        asked.until(has_state(asked, servers[0], "busy"))
        servers[1].script = busy
        (refused,) = asked.ask(prompt())  # type: ignore[misc]
        assert isinstance(refused, Refused)
        assert refused.reason == "overloaded"
        assert 40 < (refused.retry_after or 0) <= 50


def test_an_upstream_gets_requests_again_after_an_absence() -> None:
    port = free_port()
    with faulty(saying("b")) as server:
        urls = [f"http://127.0.0.1:{port}/v1", server.url]
        with asking(upstreams=urls, slow_start=0) as asked:
            assert asked.model.unready == ""
            assert {text_of(asked.ask(prompt(f"p{i}"))) for i in range(4)} == {"b"}
            with faulty(saying("a"), port) as first:
                asked.until(has_state(asked, first, "ready"))
                assert {text_of(asked.ask(prompt(f"p{i}"))) for i in range(4)} == {"a", "b"}
            asked.until(has_state(asked, first, "unready"))
            assert {text_of(asked.ask(prompt(f"p{i}"))) for i in range(4)} == {"b"}


def test_an_upstream_that_is_back_starts_slowly() -> None:
    with fleet(saying("a"), saying("b"), slow_start=86_400) as (asked, servers):
        servers[0].models = lambda: whole(503, {"error": "stopping"})
        asked.until(has_state(asked, servers[0], "unready"))
        servers[0].models = servers[1].models
        asked.until(has_state(asked, servers[0], "slow start"))
        texts = [text_of(asked.ask(prompt(f"p{i}"))) for i in range(22)]
        assert texts.count("a") <= 3  # a tenth of its weight


def test_without_any_upstream_requests_fail_at_once_with_all_reasons() -> None:
    urls = [f"http://127.0.0.1:{free_port()}/v1" for _ in range(2)]
    with asking(upstreams=urls) as asked:
        failed = asked.ask(prompt())
        assert isinstance(failed, ServableUnavailable)
        for url in urls:
            assert url.removesuffix("/v1") in str(failed)
            assert url.removesuffix("/v1") in asked.model.unready


def test_requests_wait_on_no_upstream_that_has_stopped_answering() -> None:
    is_over = threading.Event()

    def hanging(asked: Asked) -> Iterable[bytes]:
        is_over.wait(PATIENCE)
        yield b""

    def models() -> bytes:
        is_over.wait(PATIENCE)
        return b""

    with fleet(hanging, saying("b"), connect_timeout=0.2) as (asked, servers):
        servers[0].models = models
        assert {text_of(asked.ask(prompt(f"p{i}"))) for i in range(4)} == {"b"}
        is_over.set()


def test_a_hedged_request_takes_the_answer_that_comes_first() -> None:
    is_over = threading.Event()

    def hanging(asked: Asked) -> Iterable[bytes]:
        asked.closed.wait(PATIENCE)
        is_over.set()
        yield b""

    with fleet(hanging, saying("b"), hedge_after=0.01) as (asked, servers):
        assert {text_of(asked.ask(prompt(f"p{i}"))) for i in range(3)} == {"b"}
        assert servers[0].asked
        assert is_over.wait(PATIENCE)  # its connection was closed
        asked.until(has_served(asked, servers[0], len(servers[0].asked)))
        assert report_of(asked, servers[0]).errors == 0


def test_no_request_is_hedged_by_default() -> None:
    with fleet(saying("a"), saying("b")) as (asked, servers):
        for i in range(4):
            asked.ask(prompt(f"p{i}"))
        assert sum(len(server.asked) for server in servers) == 4


def test_a_client_that_leaves_frees_the_load_of_an_upstream() -> None:
    def endless(asked: Asked) -> Iterable[bytes]:
        yield HEAD
        while not asked.closed.is_set():
            yield piece("more ")

    with fleet(endless, endless) as (asked, servers):
        came: list[object] = []
        request_id = asked.model.accept(prompt(), lambda found, _: came.append(found))
        asked.until(lambda: came)
        asked.model.cancel(request_id)
        (server,) = (server for server in servers if server.asked)
        assert server.asked[0].closed.wait(PATIENCE)
        asked.until(has_served(asked, server, 1))
        assert report_of(asked, server).outstanding == 0


def test_prompts_with_a_common_beginning_go_to_the_same_upstream() -> None:
    with fleet(saying("a"), saying("b"), saying("c")) as (asked, servers):
        shared = "You answer in verse. " * 100
        texts = {text_of(asked.ask(prompt(f"{shared}{i}"))) for i in range(6)}
        assert len(texts) == 1
        assert sorted(len(server.asked) for server in servers) == [0, 0, 6]


def test_upstreams_have_names_of_the_model_and_the_shortest_context_counts() -> None:
    with faulty(saying("a")) as first, faulty(saying("b")) as second, faulty(saying("c")) as third:
        names = {"data": [{"id": "other", "max_model_len": 55}]}
        second.models = lambda: whole(200, names)
        third.models = lambda: whole(200, {"data": [{"id": "x"}, {"id": "y"}]})
        urls = [first.url, second.url, f"{third.url},model=y"]
        with asking(upstreams=urls) as asked:
            assert asked.model.card.max_model_len == 55
            for i in range(6):
                asked.ask(prompt(f"p{i}"))
            models = [{asked.body["model"] for asked in server.asked} for server in
                      (first, second, third)]  # fmt: skip
            assert models == [{"far"}, {"other"}, {"y"}]


def test_each_upstream_gets_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRST_KEY", "sk-first")
    monkeypatch.setenv("ALL_KEY", "sk-all")
    with faulty(saying("a")) as first, faulty(saying("b")) as second:
        urls = [f"{first.url},key_variable=FIRST_KEY,weight=2", second.url]
        with asking(upstreams=urls, key_variable="ALL_KEY") as asked:
            for i in range(4):
                asked.ask(prompt(f"p{i}"))
        sent = [server.asked[0].headers["authorization"] for server in (first, second)]
        assert sent == ["Bearer sk-first", "Bearer sk-all"]


def test_a_file_adds_drains_and_removes_upstreams(tmp_path: Path) -> None:
    path = tmp_path / "upstreams"
    is_over = threading.Event()

    def held(_: Asked) -> Iterable[bytes]:
        yield HEAD + piece("a")
        is_over.wait(PATIENCE)
        yield piece("a", "stop") + DONE

    with faulty(held) as first, faulty(saying("b")) as second:
        path.write_text(f"# the fleet\n{first.url}  # old\n")
        options = {"discovery_interval": 0.02, "slow_start": 0}
        with asking(upstreams=[f"file://{path}"], **options) as asked:
            events: list[Any] = []
            asked.model.accept(prompt(), lambda found, is_last: events.append((found, is_last)))
            asked.until(lambda: events)
            path.write_text(f"{first.url},weight=0\n{second.url}\n")
            asked.until(lambda: len(asked.model.upstreams) == 2)
            asked.until(has_state(asked, second, "ready"))
            assert report_of(asked, first).state == "draining"
            assert {text_of(asked.ask(prompt(f"p{i}"))) for i in range(3)} == {"b"}
            path.write_text(f"{second.url}\n")
            path.write_text("nonsense\n")  # changes nothing
            path.write_text(f"{second.url}\n")
            assert {text_of(asked.ask(prompt(f"p{i}"))) for i in range(3)} == {"b"}
            is_over.set()
            asked.until(lambda: events[-1][1])
            text = [e.text for found, _ in events for e in found if isinstance(e, Chunk)]
            assert "".join(text) == "aa"
            asked.until(lambda: [row.state for row in asked.model.upstreams] == ["ready"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"upstreams": ["http://a/v1", "http://a/v2"]}, "http://a is there twice"),
        ({"upstreams": ["http://a/v1,weight=-1", "http://b"]}, "weight of an upstream is '-1'"),
        ({"upstreams": ["http://a/v1,wieght=1", "http://b"]}, "did you mean 'weight'"),
        ({"upstreams": ["http://a/v1,weight", "http://b"]}, "expected any of weight=VALUE"),
        ({"upstreams": ["dns://a/v1"]}, "has no port"),
        ({"upstreams": ["file://a"]}, "an absolute path"),
        ({"upstreams": ["ftp://a"]}, "url is 'ftp://a', expected http:"),
        ({"url": "http://a/v1", "upstreams": ["http://b/v1"]}, "one of them"),
        ({"url": "http://a/v1", "slow_start": 3}, "slow_start is for several upstreams"),
        ({"upstreams": ["http://a/v1"], "hedge_after": 1}, "hedge_after is for several upstreams"),
        ({"upstreams": ["http://a", "http://b"], "hedge": 1}, "no option 'hedge'"),
        ({"upstreams": []}, "'url' or 'upstreams'"),
    ],
)
def test_wrong_options_of_fleets_are_named(options: dict[str, object], text: str) -> None:
    with pytest.raises(StartError) as error:
        read_options(options)
    assert text in str(error.value)


def test_a_key_that_an_upstream_lacks_is_a_start_error() -> None:
    with pytest.raises(StartError, match="NO_SUCH_KEY"):
        Asking(EngineConfig(), upstreams=["http://a,key_variable=NO_SUCH_KEY", "http://b"])
