"""The operator's view in a real Chromium: who sees it, and what it does to a real server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from mindspore_serving.frontends.http.app import make_app
from mindspore_serving.frontends.keys import Keys
from mindspore_serving.frontends.mindspore.rest import MsRest
from mindspore_serving.metrics.exposition import Page
from tests.cli.conftest import WORDS, write_words
from tests.cli.talking import Talking, serving
from tests.frontends.http_serving import Control
from tests.frontends.page.browser import Browser
from tests.frontends.page.chatting import choose
from tests.frontends.page.sharing import shared
from tests.frontends.page.test_access import check, load_axe, needs_axe
from tests.waiting import PATIENCE, eventually

KEY = "a-key-of-twenty-letters"
HEADERS = {"authorization": f"Bearer {KEY}"}


@pytest.mark.parametrize(
    ("keys", "allow_loading", "is_operator"),
    [((KEY,), True, True), ((KEY,), False, False), ((), True, False)],
)
def test_who_has_a_key_operates_a_server_that_allows_loading(
    keys: tuple[str, ...], allow_loading: bool, is_operator: bool
) -> None:
    app = make_app(
        None,  # type: ignore[arg-type]
        Control(),  # type: ignore[arg-type]
        Page,
        rest=MsRest(1),
        keys=Keys(keys),
        allow_loading=allow_loading,
    )
    client = TestClient(app, headers=HEADERS)
    assert client.get("/servables").json().get("operator", False) is is_operator
    assert client.get("/batches").status_code == (200 if is_operator else 403)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words(write_words(tmp_path_factory.mktemp("operated")), "other")


@pytest.fixture(scope="module")
def operated(place: Path) -> Iterator[Talking]:
    options = ("--allow-loading", "--api-key", KEY, "--state", "state")
    with serving(place, "words", "other", *options) as running:
        yield running


@pytest.fixture
def view(request: pytest.FixtureRequest, chromium: Browser, operated: Talking) -> Iterator[Browser]:
    """With the key in the browser's own dialog, which the page does not see."""

    def open_view() -> None:
        chromium.log_in(KEY)
        chromium.open(f"{operated.url}/#operate")
        show_servables()

    def show_servables() -> None:
        chromium.evaluate("location.hash = '#operate'")
        chromium.until(
            "document.body.dataset.view === 'operate'"
            " && document.querySelectorAll('.model .state').length === 2"
        )

    yield from shared(request, chromium, "operate", open_view, show_servables)


def state(server: Talking, name: str) -> str:
    url = f"{server.url}/v2/repository/index"
    rows = httpx.post(url, json={}, headers=HEADERS, timeout=PATIENCE).json()
    return str(next(row["state"] for row in rows if row["name"] == name))


def panel(name: str) -> str:
    return f"document.querySelector('.model[aria-label={name}]')"


def press(view: Browser, text: str) -> None:
    """A button of the servable "words"."""
    buttons = f"[...{panel('words')}.querySelectorAll('button')]"
    found = f"{buttons}.find((one) => one.checkVisibility() && one.textContent === '{text}')"
    view.until(f"{found} && !{found}.disabled")
    view.evaluate(f"{found}.click()")


@pytest.mark.e2e
def test_unloading_is_asked_about_first(view: Browser, operated: Talking) -> None:
    press(view, "Unload")
    assert "refused until it is loaded again" in view.evaluate(f"{panel('words')}.innerText")
    view.press("Escape")
    view.until(f"{panel('words')}.querySelector('.danger') === null")
    assert view.evaluate("document.activeElement.textContent") == "Unload"
    press(view, "Unload")
    press(view, "Cancel")
    assert state(operated, "words") == "READY"


@pytest.mark.e2e
def test_a_servable_is_unloaded_and_loaded(view: Browser, operated: Talking) -> None:
    press(view, "Unload")
    press(view, "Unload it")
    view.until(f"{panel('words')}.innerText.includes('unavailable · it is not loaded')")
    assert state(operated, "words") == "UNAVAILABLE"
    assert "Unload" not in view.evaluate(f"{panel('words')}.innerText").split("\n")
    press(view, "Load")
    view.until(f"{panel('words')}.innerText.includes('version 1 · ready')")
    assert state(operated, "words") == "READY"
    assert "1 of 1 workers ready" in view.evaluate(f"{panel('words')}.innerText")


@pytest.mark.e2e
def test_why_a_servable_cannot_be_loaded_stays_on_the_screen(
    view: Browser, operated: Talking, place: Path
) -> None:
    config = place / "words" / "servable_config.py"
    config.write_text("raise RuntimeError('the model is gone')\n")
    press(view, "Load again")
    view.until(f"{panel('words')}.querySelector('.failure').innerText.includes('model is gone')")
    view.excuse()  # Chromium logs the status
    assert state(operated, "words") == "READY"
    config.write_text(WORDS)
    press(view, "Load again")
    view.until(f"{panel('words')}.querySelector('.hint').innerText === 'Loaded'")
    assert view.evaluate(f"{panel('words')}.querySelector('.failure').innerText") == ""


@pytest.mark.e2e
def test_the_progress_of_loading_is_shown(view: Browser) -> None:
    row = {"name": "words", "version": "1", "state": "LOADING", "reason": "still loading, 40 %"}
    view.answer("/v2/repository/index", 200, json.dumps([row]))
    view.until(f"{panel('words')}.querySelector('progress')?.value === 0.4")
    assert "loading · still loading, 40 %" in view.evaluate(f"{panel('words')}.innerText")
    row["reason"] = "still loading, 90 %"
    view.answer("/v2/repository/index", 200, json.dumps([row]))
    view.until(f"{panel('words')}.querySelector('progress')?.value === 0.9")


@pytest.mark.e2e
def test_the_level_of_the_log_is_shown_and_changed(view: Browser, operated: Talking) -> None:
    view.until("document.getElementById('log-level').value === 'warning'")
    for level, flag in (("error", False), ("warning", True)):
        choose(view, "#log-level", level)
        view.until(f"document.getElementById('operate-said').innerText.includes('set to {level}')")
        url = f"{operated.url}/v2/logging"
        settings = httpx.get(url, headers=HEADERS, timeout=PATIENCE).json()
        assert settings["log_warning"] is flag
        assert settings["log_error"] is True


@pytest.mark.e2e
def test_a_refused_log_level_is_reported_until_closed(view: Browser) -> None:
    view.answer("/v2/logging", 400, '{"error": "not that level"}')
    choose(view, "#log-level", "error")
    error = "document.getElementById('operate-error')"
    view.until(f"{error}.innerText === 'not that level'")
    view.evaluate(f"{error}.querySelector('button').click()")
    assert view.evaluate(f"{error}.innerText") == ""
    view.excuse()  # Chromium logs the status


def nodes(server: Talking) -> dict[str, Any]:
    """What the server says of itself, if workers were on other machines."""
    url = f"{server.url}/servables"
    found: dict[str, Any] = httpx.get(url, headers=HEADERS, timeout=PATIENCE).json()
    states = (("", "ready"), ("blue", "ready"), ("blue", "restarting"))
    for row in found["servables"]:
        row["workers"] = [{"node": node, "state": state} for node, state in states]
    return found


@pytest.mark.e2e
def test_every_machine_is_shown_with_its_workers(view: Browser, operated: Talking) -> None:
    view.answer("/servables", 200, json.dumps(nodes(operated)))
    view.until("document.querySelectorAll('#machines tr').length === 2")
    name, *counts, servables = view.text("#machines tr:nth-child(2)").split("\t")
    assert (name.strip(), [int(count) for count in counts]) == ("blue", [2, 2])
    assert sorted(servables.strip().split(", ")) == ["other", "words"]


@pytest.mark.e2e
def test_running_batches_are_shown_with_their_progress(view: Browser, operated: Talking) -> None:
    assert httpx.get(f"{operated.url}/batches", headers=HEADERS).json() == {"batches": []}
    shown = "document.getElementById('batches').checkVisibility()"
    assert not view.evaluate(shown)
    batch = {"kind": "batch", "path": "/v1/completions", "status": "in_progress"}
    rows = [
        {**batch, "total": 4000, "done": 1000, "failed": 2, "age": 7300},
        {**batch, "path": "/v1/messages", "status": "validating", "total": 0, "done": 0}
        | {"failed": 0, "age": 5},
    ]
    view.answer("/batches", 200, json.dumps({"batches": rows}))
    view.until(shown)
    row = "#batches tbody tr:nth-child"
    cells = [[text.strip() for text in view.text(f"{row}({at})").split("\t")] for at in (1, 2)]
    assert cells == [
        ["/v1/completions", "1,000 of 4,000", "2", "2 h"],
        ["/v1/messages", "reading the requests", "0", "5 s"],
    ]
    assert view.evaluate(f"document.querySelector('{row}(1) progress').value") == 0.25


@pytest.mark.e2e
def test_who_may_no_longer_operate_sees_another_view(view: Browser, operated: Talking) -> None:
    found = nodes(operated)
    del found["operator"]
    view.answer("/servables", 200, json.dumps(found))
    view.until("document.body.dataset.view !== 'operate'")
    link = "document.querySelector('#views a[href=\"#operate\"]')"
    assert not view.evaluate(f"{link}.checkVisibility()")
    view.pass_on()
    view.log_in(KEY)
    eventually(lambda: view.evaluate(f"{link}.checkVisibility()"))


@pytest.mark.e2e
@needs_axe
def test_axe_finds_nothing(view: Browser, operated: Talking) -> None:
    load_axe(view)
    check(view, "servables")
    view.answer("/servables", 200, json.dumps(nodes(operated)))
    view.answer("/v2/repository/models/words/load", 400, '{"error": "it is too large"}')
    press(view, "Load again")
    view.until(f"{panel('words')}.querySelector('.failure').innerText === 'it is too large'")
    view.excuse()  # Chromium logs the status
    press(view, "Unload")
    view.evaluate(
        "document.querySelectorAll('.model details').forEach((one) => { one.open = true })"
    )
    check(view, "an error, and a question")


@pytest.mark.e2e
def test_all_four_views_fit_on_the_smallest_phone(view: Browser) -> None:
    view.look(320, 700)
    view.evaluate("document.body.dataset.chat = 'yes'")
    assert view.evaluate("document.documentElement.scrollWidth") == 320
