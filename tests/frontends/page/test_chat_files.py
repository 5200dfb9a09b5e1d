"""One form of conversations: what the page saves, `mindspore-serving chat` loads, and back."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import SERVING
from tests.cli.talking import MODEL, Talking
from tests.cli.terminal import Terminal
from tests.frontends.page.browser import Browser
from tests.frontends.page.chatting import answers, ask, finished, settings, stored

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
SAVED = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Why is the sky blue?"},
    {"role": "assistant", "content": "As **air** scatters"},
]


def save(page: Browser) -> str:
    """Press the button above the conversation; what would be written."""
    page.evaluate(
        "URL.createObjectURL = (blob) => { window.file = blob; return 'about:blank#' };"
        "HTMLAnchorElement.prototype.click = function () { window.name = this.download }"
    )
    page.click(".lane-head [aria-label='Save this conversation as a file']")
    page.until("window.file")
    assert page.evaluate("window.name") == "Why-is-the-sky-blue.json"
    return str(page.evaluate("window.file.text()"))


def load(page: Browser, text: str) -> None:
    page.evaluate(
        f"(() => {{ const data = new DataTransfer();"
        f"data.items.add(new File([{json.dumps(text)}], 'c.json'));"
        "const input = document.getElementById('file'); input.files = data.files;"
        "input.dispatchEvent(new Event('change')); })()"
    )
    page.until("document.getElementById('list-said').innerText")


def test_a_conversation_goes_from_the_page_to_the_terminal_and_back(
    fresh: Browser, server: Talking, tmp_path: Path
) -> None:
    settings(fresh, system="Be kind.", max_tokens="5")
    answers(fresh, SAVED[2]["content"])
    ask(fresh, SAVED[1]["content"])
    finished(fresh)
    text = save(fresh)
    expected = {"model": MODEL, "messages": SAVED, "temperature": 0, "max_tokens": 5}
    assert json.loads(text) == expected
    (tmp_path / "page.json").write_text(text)
    command = [*SERVING, "chat", server.url, "--load", "page.json", "--max-tokens", "5"]
    with Terminal(command, tmp_path) as terminal:
        terminal.shows("exit leaves", "> ")
        terminal.type("go on")
        terminal.shows("cut off at 5 tokens", "> ")
        terminal.type("/save terminal.json")
        terminal.shows("saved in terminal.json", "> ")
        terminal.leave()
    again = (tmp_path / "terminal.json").read_text()
    body = json.loads(again)
    assert body["messages"][:4] == [*SAVED, {"role": "user", "content": "go on"}]
    fresh.click("#new")
    load(fresh, again)
    fresh.until("document.querySelectorAll('#list .title').length === 2")
    fresh.click("#list .title")
    fresh.until("document.querySelectorAll('.message').length === 5")
    assert fresh.text(".message.system .said") == "Be kind."
    assert fresh.text(".message.assistant strong") == "air"
    assert [one["content"] for one in stored(fresh)] == [one["content"] for one in body["messages"]]
    fresh.evaluate("delete window.file")
    assert json.loads(save(fresh))["messages"] == body["messages"]


def test_a_file_that_is_no_conversation_is_named_with_the_reason(page: Browser) -> None:
    load(page, '{"messages": [{"role": "usr", "content": "a"}]}')
    said = page.text("#list-said")
    assert said.startswith('c.json cannot be imported: messages[0].role is "usr", expected system')
