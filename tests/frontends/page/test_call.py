"""Calling a classic servable by the form of the page, in a real Chromium."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from tests.cli.talking import Talking
from tests.frontends.page.browser import Browser
from tests.frontends.page.chatting import choose
from tests.frontends.page.sharing import shared
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
DOUBLE = "model/words:double"


@pytest.fixture
def form(request: pytest.FixtureRequest, chromium: Browser, server: Talking) -> Iterator[Browser]:
    """That of the method "double"."""

    def choose_double() -> None:
        choose(chromium, "#method", DOUBLE)
        chromium.click("[data-language=curl]")
        fill(chromium, "1.5")

    def open_call() -> None:
        chromium.open(f"{server.url}/#call")
        chromium.until("document.querySelectorAll('#method option').length > 2")
        choose_double()

    yield from shared(request, chromium, "form", open_call, choose_double)


def fill(form: Browser, text: str) -> None:
    form.click(".input textarea")
    form.evaluate("document.activeElement.select()")
    form.type(text)


def test_a_filled_form_is_answered_by_a_table(form: Browser) -> None:
    form.click("#call-form .main")
    form.until("document.querySelector('#reply td')")
    assert form.text("#reply table").split() == ["y", "3"]
    assert form.text("#reply .hint").startswith("status 200")


def test_refusals_of_a_servable_are_shown(form: Browser) -> None:
    fill(form, '{"no": "number"}')
    form.click("#call-form .main")
    form.until("document.querySelector('#reply .error')")
    assert form.evaluate("document.querySelector('#reply .error').role") == "alert"
    assert form.text("#reply .error")
    form.complaints.clear()  # Chromium logs the status, if there is one


GENERATE = "model/chatty:generate"


def test_optional_numbers_have_fields_with_their_range_and_default(
    form: Browser, server: Talking
) -> None:
    (model,) = httpx.get(f"{server.url}/v1/models", timeout=PATIENCE).json()["data"]
    default = {name: f"{value:g}" for name, value in model["default_sampling"].items()}
    choose(form, "#method", GENERATE)
    found = form.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.input.number input')].map((one) => "
        "[one.ariaLabel, [one.type, one.min, one.max, one.step, one.placeholder, one.value]]))"
    )
    assert found == {
        "max_tokens": ["number", "1", "", "1", "16", ""],
        "temperature": ["number", "0", "100", "any", default["temperature"], ""],
        "top_k": ["number", "0", "", "1", default["top_k"], ""],
        "top_p": ["number", "0", "1", "any", default["top_p"], ""],
        "repetition_penalty": ["number", "0.01", "100", "any", "1", ""],
        "seed": ["number", "0", "", "1", "", ""],
    }
    shown = form.evaluate(
        "[...document.querySelectorAll('.input')].filter((one) => one.checkVisibility())"
        ".map((one) => one.querySelector('legend').firstChild.data)"
    )
    assert shown == ["prompt", "max_tokens", "temperature"]
    assert form.text(".input.number p.hint") == "from 1, default 16"
    form.click(".more summary")
    form.until("document.querySelector('.more [aria-label=top_k]').checkVisibility()")
    assert f"over 0, to 1, default {default['top_p']}" in form.text(".more")


def test_a_number_that_is_filled_in_is_sent_as_a_number(form: Browser) -> None:
    choose(form, "#method", GENERATE)
    form.click("[aria-label=max_tokens]")
    form.type("3")
    assert '"max_tokens":3}' in form.text("#program")
    form.click("#call-form .main")
    form.until("document.querySelector('#reply td')")
    assert form.text("#reply .hint").startswith("status 200")


def test_a_number_out_of_range_is_not_sent(form: Browser) -> None:
    choose(form, "#method", GENERATE)
    form.click("[aria-label=temperature]")
    form.type("101")
    form.requests.clear()
    form.click("#call-form .main")
    form.until("document.activeElement.ariaLabel === 'temperature'")
    assert not form.evaluate("document.activeElement.validity.valid")
    assert [one for one in form.requests if one["method"] == "POST"] == []


COMMANDS = {
    "curl": ["bash", "-c"],
    "python": [sys.executable, "-c"],
    "javascript": ["node", "--input-type=module", "-e"],
}


@pytest.mark.parametrize(
    ("language", "tool", "said"),
    [
        ("curl", "curl", '{"instances":[{"y":3.0}]}'),
        ("python", sys.executable, "{'instances': [{'y': 3.0}]}"),
        ("javascript", "node", "{ instances: [ { y: 3 } ] }"),
    ],
)
def test_the_shown_program_makes_the_same_call(
    form: Browser, language: str, tool: str, said: str
) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    form.click(f"[data-language={language}]")
    command = [*COMMANDS[language], form.text("#program")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.replace("\n", "").replace(" ", "") == said.replace(" ", "")


def test_numbers_that_are_a_picture_are_drawn(form: Browser) -> None:
    rows = [[(x + y) / 20 for x in range(10)] for y in range(10)]
    form.answer(f"/{DOUBLE}", 200, json.dumps({"instances": [{"heat": rows}]}))
    form.click("#call-form .main")
    form.until("document.querySelector('#reply canvas')?.width === 10")
