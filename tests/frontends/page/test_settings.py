"""Settings of the chat, what applies without them, and how much of the context is used."""

import json

import httpx
import pytest

from tests.cli.talking import CONTEXT, MODEL, Talking
from tests.frontends.page.browser import Browser
from tests.frontends.page.chatting import (
    answers,
    ask,
    bodies,
    choose,
    ended,
    finished,
    hold,
    open_settings,
    settings,
    streamed,
)
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
COMPLETIONS = "/v1/chat/completions"
COUNTED = streamed({"content": "yes"}, usage={"prompt_tokens": 20, "completion_tokens": 5})
RECOMMENDING = {
    "id": MODEL,
    "max_model_len": 512,
    "default_sampling": {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05},
    "sampling_source": "model",
    "suggested_max_tokens": 77,
}


def test_a_field_with_no_number_is_opened_and_marked(fresh: Browser) -> None:
    settings(fresh, temperature="")
    open_settings(fresh)
    fresh.click("#set-temperature")
    fresh.type("-")
    fresh.evaluate("document.querySelector('[data-group=sampling]').open = false")
    fresh.click("#settings-close")
    ask(fresh, "hello")
    ended(fresh)
    assert fresh.text(".failure") == "Temperature is not a number"
    assert bodies(fresh) == []
    assert fresh.evaluate("document.querySelector('[data-group=sampling]').open")
    assert fresh.evaluate("document.getElementById('set-temperature').ariaInvalid") == "true"


def test_numbers_have_ranges_and_the_defaults_of_the_model(fresh: Browser, server: Talking) -> None:
    fresh.answer("/v1/models", 200, json.dumps({"data": [RECOMMENDING]}))
    fresh.open(f"{server.url}/?again")
    fresh.until("document.body.dataset.chat === 'yes'")
    open_settings(fresh)
    defaults = {**RECOMMENDING["default_sampling"], "max_tokens": 77}
    for name, value in defaults.items():
        field = f"document.getElementById('set-{name}')"
        assert fresh.evaluate(f"[{field}.type, {field}.min !== '']") == ["number", True]
        assert fresh.evaluate(f"{field}.placeholder") == f"default {value}"
    assert fresh.text("#sampling-source") == "An empty field is what the model recommends."


def test_a_preset_is_saved_chosen_and_deleted(fresh: Browser) -> None:
    settings(fresh, temperature="0.3")
    open_settings(fresh)
    fresh.click("#preset-name")
    fresh.type("mine")
    fresh.click("#preset-save")
    choose(fresh, "#preset", "=exact")
    assert fresh.evaluate("document.getElementById('set-temperature').value") == "0"
    choose(fresh, "#preset", "+mine")
    assert fresh.evaluate("document.getElementById('set-temperature').value") == "0.3"
    fresh.click("#preset-delete")
    assert fresh.evaluate("document.querySelectorAll('#preset optgroup').length") == 1


def test_groups_of_settings_stay_as_they_were_left(fresh: Browser, server: Talking) -> None:
    is_open = "[...document.querySelectorAll('#settings details')].map((one) => one.open)"
    fresh.evaluate(
        "for (const one of document.querySelectorAll('#settings details')) one.open = false"
    )
    fresh.click("#open-settings")
    fresh.until("document.getElementById('settings').open")
    assert "Temperature 0" in fresh.text("[data-group=sampling] summary")
    fresh.click("[data-group=sampling] summary")
    fresh.until(f"{is_open}[0]")
    fresh.until("localStorage.getItem('mindspore-serving-groups') === '[\"sampling\"]'")
    fresh.open(f"{server.url}/?again")
    assert fresh.evaluate(is_open) == [True, False, False, False]


def test_the_defaults_are_those_of_the_server(page: Browser, server: Talking) -> None:
    (model,) = httpx.get(f"{server.url}/v1/models", timeout=PATIENCE).json()["data"]
    defaults = {**model["default_sampling"], "max_tokens": model["suggested_max_tokens"]}
    open_settings(page)
    for name, value in defaults.items():
        shown = page.evaluate(f"document.getElementById('set-{name}').placeholder")
        assert shown == f"default {value:g}"
    assert "the model recommends none" in page.text("#sampling-source")


def test_a_proposed_question_is_sent(page: Browser) -> None:
    page.click("#text")
    page.type("a thought")
    page.click(".suggestions button")
    assert finished(page)
    assert bodies(page)[-1]["messages"] == [
        {"role": "user", "content": "Explain how a rainbow forms"}
    ]
    assert page.evaluate("document.getElementById('text').value") == "a thought"


def test_an_answer_is_limited_unless_someone_asks_for_more(page: Browser) -> None:
    answers(page, "yes")
    settings(page, max_tokens="")
    ask(page, "hello")
    finished(page)
    assert bodies(page)[-1]["max_tokens"] == 1024


def test_reasoning_has_a_limit_of_its_own(page: Browser) -> None:
    answers(page, "yes")
    settings(page, thinking_token_budget="64")
    ask(page, "hello")
    finished(page)
    assert bodies(page)[-1]["thinking_token_budget"] == 64


def test_an_answer_cut_at_the_limit_offers_the_rest(page: Browser) -> None:
    ask(page, "hello")
    first = finished(page)
    page.click(".message.assistant .continue")
    page.until(f"document.querySelector('.markdown').innerText.length > {len(first)}")
    ended(page)
    assert bodies(page)[-1]["continue_final_message"] is True


def test_a_full_context_is_said_and_nothing_more_is_offered(page: Browser) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": CONTEXT - 5}
    stream = streamed({"content": "and so"}, finish="length", usage=usage)
    page.answer(COMPLETIONS, 200, stream, "text/event-stream")
    ask(page, "hello")
    finished(page)
    assert "context of the model is full" in page.text(".log .note")
    assert page.evaluate("document.querySelectorAll('.continue, .resume').length") == 0


def test_the_context_is_counted_while_an_answer_comes(page: Browser) -> None:
    hold(page, *["word "] * 400)
    used = (
        "Number(document.querySelector('.lane-head .hint').innerText"
        ".replace(/[^0-9]*([0-9,]+) of.*/, '$1').replace(',', ''))"
    )
    ask(page, "hello")
    page.until(f"{used} > 400")
    assert page.text(".lane-head .hint").startswith("about ")
    page.press("Escape")
    ended(page)
    assert page.text(".lane-head .hint").startswith("about ")


def test_the_context_at_the_end_is_the_count_of_the_server(page: Browser) -> None:
    page.answer(COMPLETIONS, 200, COUNTED, "text/event-stream")
    ask(page, "hello")
    finished(page)
    assert page.text(".lane-head .hint") == f"25 of {CONTEXT:,} tokens"
