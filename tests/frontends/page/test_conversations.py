"""What can be done with messages and conversations, in a real Chromium."""

import json

import pytest

from tests.cli.talking import MODEL, Talking
from tests.frontends.page.browser import Browser
from tests.frontends.page.chatting import (
    answers,
    ask,
    bodies,
    choose,
    ended,
    finished,
    open_settings,
    reopen,
    settings,
    stored,
    streamed,
)

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
COMPLETIONS = "/v1/chat/completions"
MARKDOWN = """# Title

**bold** and $a_1*b*c$, [web](https://web.invalid/) and [bad](javascript:alert(1))

```python
print("<b>")
```

| a | b |
|---|--:|
| 1 | 2 |

![picture](https://web.invalid/x.png) <img src=x>"""
TOOL = {"name": "add", "parameters": {"type": "object", "properties": {"x": {"type": "number"}}}}


def act(page: Browser, number: int, name: str) -> None:
    """Press a button of the message with that number."""
    page.click(f".message:nth-child({number}) .actions .{name}")


def test_markdown_is_shown_without_running_or_loading_anything(page: Browser) -> None:
    answers(page, *(MARKDOWN[at : at + 7] for at in range(0, len(MARKDOWN), 7)))
    ask(page, "Show me")
    finished(page)
    assert page.text(".markdown strong") == "bold"
    page.until("document.querySelector('.markdown .formula math')")
    formula = page.evaluate("document.querySelector('.formula annotation').textContent")
    assert formula == "a_1*b*c"
    assert page.text(".markdown pre") == 'print("<b>")'
    assert page.text(".markdown td.align-right") == "2"
    links = page.evaluate("[...document.querySelectorAll('.markdown a')].map((one) => one.href)")
    assert links == ["https://web.invalid/", "https://web.invalid/x.png"]
    assert "<img src=x>" in page.text(".markdown")
    assert page.evaluate("document.querySelectorAll('.markdown img').length") == 0


@pytest.mark.parametrize("button", [".code .copy", ".message:nth-child(2) .actions .copy"])
def test_code_and_messages_are_copied(page: Browser, button: str) -> None:
    answers(page, "```\nx = 1\n```")
    ask(page, "Show me")
    finished(page)
    page.evaluate(
        "delete window.copied;"
        "navigator.clipboard.writeText = async (text) => { window.copied = text }"
    )
    page.click(button)
    page.until("window.copied")
    assert page.evaluate("window.copied") in ("x = 1", "```\nx = 1\n```")
    page.until(f"document.querySelector('{button}').ariaLabel === 'Copied'")


def test_an_answer_is_given_again_in_the_place_of_the_first(page: Browser) -> None:
    answers(page, "one")
    ask(page, "Say a number")
    finished(page)
    answers(page, "two")
    act(page, 2, "redo")
    page.until("document.querySelector('.markdown').innerText === 'two'")
    ended(page)
    assert [one["content"] for one in stored(page)] == ["Say a number", "two"]
    assert bodies(page)[-1]["messages"] == [{"role": "user", "content": "Say a number"}]


def test_where_answering_again_fails_the_answer_stays(page: Browser) -> None:
    answers(page, "one")
    ask(page, "Say a number")
    finished(page)
    page.answer(COMPLETIONS, 429, '{"error": {"message": "too much to do"}}')
    act(page, 2, "redo")
    page.until("document.querySelector('.failure').innerText === 'too much to do'")
    assert page.text(".markdown") == "one"
    page.excuse()  # Chromium logs the status


def test_a_question_is_edited_and_sent_again(page: Browser) -> None:
    answers(page, "yes")
    ask(page, "first")
    finished(page)
    ask(page, "second")
    finished(page)
    act(page, 1, "edit")
    page.until("document.activeElement.matches('textarea.edit')")
    page.evaluate("document.activeElement.select()")
    page.type("other")
    page.click(".editing .main")
    page.until("document.querySelectorAll('.message').length === 2")
    ended(page)
    assert [one["content"] for one in stored(page)] == ["other", "yes"]


def test_an_answer_is_continued_from_its_end(page: Browser) -> None:
    ask(page, "hello")
    first = finished(page)
    act(page, 2, "resume")
    page.until(f"document.querySelector('.markdown').innerText.length > {len(first)}")
    ended(page)
    sent = bodies(page)[-1]
    assert sent["continue_final_message"] is True
    (_, answer) = stored(page)
    assert answer["content"].startswith(sent["messages"][-1]["content"])


def test_a_message_is_deleted(page: Browser) -> None:
    answers(page, "yes")
    ask(page, "first")
    finished(page)
    act(page, 2, "remove")
    page.until("document.querySelectorAll('.message').length === 1")
    act(page, 1, "redo")  # a question without an answer can be asked again
    page.until("document.querySelectorAll('.message').length === 2")
    ended(page)
    act(page, 1, "remove")
    page.until("document.querySelector('.welcome')")
    assert page.evaluate("document.querySelectorAll('.message').length") == 0


def test_refusals_of_the_server_are_shown_above_the_message(page: Browser) -> None:
    settings(page, temperature="9")
    ask(page, "hello")
    ended(page)
    assert page.text(".failure") == "temperature is 9.0, expected a number from 0 to 2"
    assert page.evaluate("document.getElementById('set-temperature').ariaInvalid") == "true"
    assert page.evaluate("document.getElementById('text').value") == "hello"
    page.excuse()  # Chromium logs the status


def test_the_error_of_a_long_prompt_is_visible(page: Browser) -> None:
    for _ in range(6):
        answers(page, "a line\n\n" * 30)
        ask(page, "fill the screen")
        finished(page)
    page.pass_on()
    page.click("#text")
    page.type("word " * 70000)
    page.press("Enter")
    ended(page)
    assert "maximum context length" in page.text(".failure")
    box = page.evaluate("document.querySelector('.failure').getBoundingClientRect().toJSON()")
    assert 0 < box["top"] < box["bottom"] <= page.evaluate("innerHeight")
    page.excuse()  # Chromium logs the status


def test_tokens_are_coloured_by_their_probability(page: Browser) -> None:
    open_settings(page)
    page.click("#set-logprobs")
    page.click("#settings-close")
    ask(page, "hello")
    finished(page)
    assert page.evaluate("document.querySelectorAll('.tokens span').length") > 0
    page.evaluate("document.querySelector('.tokens').focus()")
    page.press("ArrowRight")
    assert page.text(".tokens + .hint").count("%") == 5


def test_a_tool_is_tried_by_hand(page: Browser) -> None:
    settings(page, tools=json.dumps([TOOL]))
    call = {"index": 0, "id": "1", "function": {"name": "add", "arguments": '{"x": 1}'}}
    stream = streamed({"tool_calls": [call]}, finish="tool_calls")
    page.answer(COMPLETIONS, 200, stream, "text/event-stream")
    ask(page, "add")
    ended(page)
    assert page.text(".call-name") == "add"
    answers(page, "it is 2")
    page.click(".results textarea")
    page.type("2")
    page.click(".results .main")
    page.until("document.querySelectorAll('.message').length === 4")
    ended(page)
    sent = bodies(page)[-1]
    assert sent["tools"][0]["function"] == TOOL
    assert sent["messages"][-1] == {"role": "tool", "content": "2", "tool_call_id": "1"}


def test_an_answer_can_have_the_form_of_a_schema(page: Browser) -> None:
    settings(page, schema='{"enum": ["yes", "no"]}')
    ask(page, "Is it so?")
    assert finished(page).strip('"') in ("yes", "no")


def test_two_models_answer_side_by_side(page: Browser) -> None:
    answers(page, "yes")
    page.click("#compare")
    page.until("document.querySelectorAll('.lane').length === 2")
    ask(page, "Is it so?")
    ended(page)
    assert page.evaluate("document.querySelectorAll('.lane .markdown').length") == 2
    assert [one["model"] for one in bodies(page)] == [MODEL, MODEL]
    page.click(".lane:first-child [aria-label='Close this model']")
    page.until("document.querySelectorAll('.lane').length === 1")
    assert page.text(".markdown") == "yes"


def test_conversations_are_kept_found_named_and_deleted(fresh: Browser, server: Talking) -> None:
    answers(fresh, "about rain")
    ask(fresh, "first question")
    finished(fresh)
    fresh.click("#new")
    answers(fresh, "about snow")
    ask(fresh, "second question")
    finished(fresh)
    reopen(fresh, server, 2)
    fresh.until("document.querySelectorAll('#list .title').length === 2")
    fresh.click("#search")
    fresh.type("rain")
    fresh.until("document.querySelectorAll('#list .title').length === 1")
    fresh.click("#list .title")
    fresh.until("document.querySelector('.markdown')?.innerText === 'about rain'")
    fresh.click("#list [aria-label^=Rename]")
    fresh.type("Weather")
    fresh.press("Enter")
    fresh.until("document.querySelector('#list .title').innerText === 'Weather'")
    fresh.click("#list [aria-label='Delete Weather']")
    fresh.click("#list .danger")
    fresh.until("document.querySelectorAll('#list .title').length === 0")
    fresh.until("document.querySelector('.welcome')")  # what was deleted is not shown any more
    assert fresh.evaluate("document.querySelector('.markdown')") is None


def test_the_language_and_the_theme_are_chosen_and_kept(fresh: Browser, server: Talking) -> None:
    choose(fresh, "#language", "zh")
    fresh.until("document.documentElement?.lang === 'zh' && document.body?.dataset.chat === 'yes'")
    assert fresh.text("#new") == "新对话"
    fresh.click("#theme")
    fresh.click("#theme")
    fresh.open(f"{server.url}/?again")
    fresh.until("document.documentElement.dataset.theme === 'dark'")
    assert fresh.evaluate("getComputedStyle(document.body).colorScheme") == "dark"


def test_conversations_go_to_a_file_and_come_back(fresh: Browser, server: Talking) -> None:
    answers(fresh, "yes")
    ask(fresh, "first question")
    finished(fresh)
    fresh.evaluate(
        "URL.createObjectURL = (blob) => { window.file = blob; return 'about:blank#' };"
        "HTMLAnchorElement.prototype.click = () => {}"
    )
    fresh.click("#export")
    text = fresh.evaluate("window.file.text()")
    fresh.click("#list [aria-label^=Delete]")
    fresh.click("#list .danger")
    fresh.until("document.querySelectorAll('#list .title').length === 0")
    for content in (text, '{"kind": "other"}'):
        fresh.evaluate(
            f"(() => {{ const data = new DataTransfer();"
            f"data.items.add(new File([{json.dumps(content)}], 'c.json'));"
            "const input = document.getElementById('file'); input.files = data.files;"
            "input.dispatchEvent(new Event('change')); })()"
        )
        fresh.until("document.getElementById('list-said').innerText")
    assert fresh.text("#list .title") == "first question"
    fresh.until("document.getElementById('list-said').innerText.includes('kind is \"other\"')")
