"""Batches and background responses of two servers with one database."""

import threading
from collections.abc import Iterator

import openai
import pytest

from tests.frontends.openai.serving import Web, serving, spoken, whole
from tests.frontends.openai.test_background import hold
from tests.frontends.openai.test_batches import client_of, end, line, results, start
from tests.frontends.state.postgres import Postgres
from tests.waiting import eventually

STATE = "mindspore_serving.frontends.state"
TEXTS = [str(number) for number in range(12)]


@pytest.fixture
def webs(empty: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Web, Web]]:
    monkeypatch.setattr(f"{STATE}.runner._SHARED_SWEEP_SECONDS", 0.3)
    monkeypatch.setattr(f"{STATE}.claims.RENEWAL_SECONDS", 0.3)
    with serving(directory=empty.url) as first, serving(directory=empty.url) as second:
        yield first, second


def asked(web: Web) -> list[str]:
    return [call.sent.messages[-1]["content"] for call in web.inference.calls]


def test_no_line_runs_at_both_servers(webs: tuple[Web, Web]) -> None:
    with client_of(webs[0]) as first, client_of(webs[1]) as second:
        batches = [
            start(client, *[line(text, text) for text in TEXTS]) for client in (first, second)
        ]
        done = [end(second, batches[0]), end(first, batches[1])]
        assert [batch.request_counts.completed for batch in done] == [len(TEXTS)] * 2
        for batch in done:
            names = [row["custom_id"] for row in results(first, batch.output_file_id)]
            assert sorted(names) == sorted(TEXTS)
    assert sorted(asked(webs[0]) + asked(webs[1])) == sorted(TEXTS * 2)


def test_a_batch_survives_its_server(webs: tuple[Web, Web]) -> None:
    first, second = webs
    answered, waiting = TEXTS[:4], threading.Event()

    def script(request):
        if request.messages[-1]["content"] in answered:
            return whole(*spoken("Hi"))
        waiting.set()
        return None  # for ever

    for web in webs:
        web.inference.script = script
    with client_of(second) as client:
        batch = start(client, *[line(text, text) for text in TEXTS])
        eventually(lambda: client.batches.retrieve(batch.id).request_counts.completed == 4)
        waiting.wait()
        runs, other = (first, second) if asked(first) else (second, first)
        assert not asked(other)
        other.inference.script = lambda request: whole(*spoken("Hi"))
        runs.run(runs.batches.close())
        with client_of(other) as client:
            done = end(client, batch)
            names = [row["custom_id"] for row in results(client, done.output_file_id)]
    assert sorted(names) == sorted(TEXTS)
    assert not {*answered} & {*asked(other)}  # what has a result does not run again


def test_a_batch_is_cancelled_at_the_other_server(webs: tuple[Web, Web]) -> None:
    for web in webs:
        web.inference.script = lambda request: None
    with client_of(webs[0]) as first, client_of(webs[1]) as second:
        batch = start(first, line("a"))
        runs = eventually(lambda: next((web for web in webs if asked(web)), None))
        other = second if runs is webs[0] else first
        other.batches.cancel(batch.id)
        assert end(other, batch).status == "cancelled"


def test_a_background_response_belongs_to_its_server(webs: tuple[Web, Web]) -> None:
    first, second = webs
    hold(first)
    with client_of(first) as at_first, client_of(second) as at_second:
        made = at_first.responses.create(model="toy", input="Hello", background=True)
        found = eventually(lambda: _found(at_second, made.id))
        assert found.status in ("queued", "in_progress")
        for refused in (at_second.responses.cancel, at_second.responses.delete):
            with pytest.raises(openai.ConflictError, match="another server"):
                refused(made.id)
        at_first.responses.cancel(made.id)
        assert at_second.responses.retrieve(made.id).status == "cancelled"


def _found(client: openai.OpenAI, name: str) -> object:
    try:
        return client.responses.retrieve(name)
    except openai.NotFoundError:
        return None
