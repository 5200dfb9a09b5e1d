"""The chat in a real Chromium, with a real server and a real, if senseless, model."""

import re

import httpx
import pytest

from tests.cli.talking import MODEL, Talking
from tests.frontends.page.browser import Browser
from tests.frontends.page.chatting import (
    ask,
    ask_endlessly,
    bodies,
    ended,
    finished,
    record,
    recorded,
    row,
    settings,
    stored,
    streamed,
)
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
COMPLETIONS = "/v1/chat/completions"
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def test_only_a_browser_gets_the_page(server: Talking) -> None:
    headers = {"accept": "text/html"}
    assert "<!doctype html>" in httpx.get(server.url, headers=headers, timeout=PATIENCE).text
    assert "<!doctype html>" not in httpx.get(server.url, timeout=PATIENCE).text


def test_an_answer_comes_piece_by_piece_and_is_counted(page: Browser, server: Talking) -> None:
    ask_endlessly(page, "hello")
    # while it comes there is some of it, a way to stop it, and screen readers wait
    page.until("document.querySelector('.coming .said')?.textContent.length > 5")
    assert page.evaluate("document.getElementById('send').hidden")
    assert not page.evaluate("document.getElementById('stop').hidden")
    assert page.evaluate("document.querySelector('.log').ariaBusy") == "true"
    page.press("Escape")
    finished(page)
    page.click("#new")
    settings(page, max_tokens="2000")  # some tenths of a second, from which on there is a rate
    record(page)
    ask(page, "hello")
    text = finished(page)
    assert page.evaluate("document.querySelector('.log').ariaBusy") == "false"
    # The page leaves out the replacement character of a token that ends within a character.
    assert stored(page)[-1]["content"] == recorded(page).rstrip("\ufffd")
    assert len(text) > 100
    numbers = page.text(".log > :last-child .numbers")
    assert re.fullmatch(
        r"[\d,]+ tokens · [\d.,k]+ tokens/s · first after [\d.]+ m?s"
        r" · prompt \d+( \(\d+ cached\))?",
        numbers,
    )


def test_an_answer_that_was_cut_off_is_marked(page: Browser) -> None:
    stream = streamed({"content": "and so"}, finish="length")
    page.answer(COMPLETIONS, 200, stream, "text/event-stream")
    ask(page, "hello")
    finished(page)
    assert "cut off" in page.text(".log > :last-child .note")


def test_the_conversation_is_sent_until_a_new_chat_begins(page: Browser, server: Talking) -> None:
    settings(page, system="Be kind.", top_p="0.9")
    ask(page, "one")
    first = finished(page)
    ask(page, "two")
    finished(page)
    page.click("#new")
    assert page.evaluate("document.querySelectorAll('.message').length") == 0
    ask(page, "three")
    finished(page)
    system = {"role": "system", "content": "Be kind."}
    one, two, three = bodies(page)
    assert one["messages"] == [system, {"role": "user", "content": "one"}]
    assert [turn["role"] for turn in two["messages"]] == ["system", "user", "assistant", "user"]
    assert two["messages"][2]["content"].strip() == first.strip()
    assert three["messages"] == [system, {"role": "user", "content": "three"}]
    assert (one["temperature"], one["top_p"], one["max_tokens"]) == (0, 0.9, 12)
    assert one["model"] == MODEL


def test_settings_are_kept_and_an_empty_field_is_the_servers_default(
    page: Browser, server: Talking
) -> None:
    settings(page, temperature="0.0", max_tokens="13")
    page.open(server.url)
    page.until("document.body.dataset.chat === 'yes'")
    assert page.text("#settings-summary") == "Temperature 0.0 · Max tokens 13"
    settings(page, temperature="")
    assert page.text("#settings-summary") == "Max tokens 13"
    ask(page, "hello")
    finished(page)
    assert "temperature" not in bodies(page)[-1]


@pytest.mark.parametrize("how", ["Escape", "button"])
def test_stopping_an_answer_stops_the_model(page: Browser, server: Talking, how: str) -> None:
    ask_endlessly(page, "hello")
    page.until("document.querySelector('.coming .said')?.textContent.length > 5")
    eventually(lambda: row(server)["engine"].get("num_running") == 1)
    if how == "Escape":
        page.press("Escape")
    else:
        page.click("#stop")
    assert finished(page)
    assert page.text(".log > :last-child .note") == "stopped"
    assert page.text(".log > :last-child .numbers").startswith("about ")
    eventually(lambda: row(server)["engine"]["num_running"] == 0, what="the engine stops")
    # what was said stays part of the conversation
    settings(page, max_tokens="5")
    ask(page, "go on")
    finished(page)
    assert [turn["role"] for turn in bodies(page)[-1]["messages"]] == ["user", "assistant", "user"]


def test_the_keyboard_is_enough(page: Browser) -> None:
    page.click("#text")
    page.press("Enter")  # nothing to send
    page.type("one")
    page.press("Enter", shift=True)
    page.type("two")
    assert page.evaluate("document.getElementById('text').value") == "one\ntwo"
    page.press("Enter")
    finished(page)
    assert len(bodies(page)) == 1
    assert page.evaluate("document.activeElement.id") == "text"


def test_nobodys_text_becomes_markup(page: Browser) -> None:
    page.answer(COMPLETIONS, 200, streamed({"content": HOSTILE}), "text/event-stream")
    ask(page, HOSTILE)
    assert finished(page) == HOSTILE
    assert page.text(".log .user .said") == HOSTILE
    assert page.evaluate("document.querySelectorAll('.log img, .log script').length") == 0
    assert page.evaluate("document.title") == "MindSpore Serving"


def test_the_policy_stops_markup_even_where_the_page_would_not(page: Browser) -> None:
    attempt = "(() => { try { document.body.innerHTML = 'x' } catch (e) { return e.name } })()"
    assert page.evaluate(attempt) == "TypeError"
    assert any("TrustedHTML" in one for one in page.complaints)
    page.complaints.clear()


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (429, '{"error": {"message": "too much to do"}}', "too much to do"),
        (500, "<html>oops</html>", "<html>oops</html>"),
        (200, 'data: {"error": {"message": "worker lost"}}\n\n', "worker lost"),
        (200, 'data: {"choices": []}\n\n', "The connection was lost before the end of the answer."),
    ],
)
def test_a_failure_is_told_and_the_question_is_not_lost(
    page: Browser, status: int, body: str, told: str
) -> None:
    page.answer(COMPLETIONS, status, body, "text/event-stream")
    ask(page, "why?")
    ended(page)
    assert page.text(".failure") == told
    assert page.evaluate("document.querySelector('.failure').role") == "alert"
    assert page.evaluate("document.getElementById('text').value") == "why?"
    page.pass_on()
    page.complaints.clear()  # Chromium logs the status
    page.press("Enter")
    finished(page)
    assert bodies(page)[-1]["messages"] == [{"role": "user", "content": "why?"}]


def test_reasoning_is_shown_apart(page: Browser) -> None:
    deltas = [{"reasoning_content": "hm, "}, {"reasoning_content": "so"}, {"content": "yes"}]
    page.answer(COMPLETIONS, 200, streamed(*deltas), "text/event-stream")
    ask(page, "hm?")
    assert finished(page) == "yes"
    thought = page.evaluate("document.querySelector('.log details div').textContent")
    assert thought == "hm, so"


def test_text_typed_before_chats_are_read_stays(browser: Browser, server: Talking) -> None:
    """A store that never opens holds the page in its first moment."""
    never = "IDBFactory.prototype.open = () => ({})"
    added = browser.call("Page.addScriptToEvaluateOnNewDocument", source=never)
    browser._scripts.append(added["identifier"])
    browser.open(server.url)
    browser.evaluate("document.querySelector('textarea').focus()")
    browser.type("hello")
    browser.press("Enter")
    assert browser.evaluate("document.querySelector('textarea').value").strip() == "hello"
    assert browser.complaints == []
