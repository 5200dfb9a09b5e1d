"""What a person does in the chat of the page, and what the browser then has."""

import json

import httpx

from tests.cli.talking import MODEL, Talking
from tests.frontends.page.browser import Browser
from tests.waiting import PATIENCE


def settings(page: Browser, **values: str) -> None:
    """Type into the fields of the settings."""
    page.click("#open-settings")
    for name, value in values.items():
        page.click(f"#set-{name}")
        page.evaluate(f"document.getElementById('set-{name}').select()")
        page.evaluate("document.execCommand('delete')")
        page.type(value)
    page.click("#settings-close")


def choose(page: Browser, selector: str, value: str) -> None:
    """Choose an option of a list."""
    page.evaluate(
        f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
        f"one.value = {json.dumps(value)}; one.dispatchEvent(new Event('change')); }})()"
    )


def ask(page: Browser, text: str) -> None:
    page.click("#text")
    page.until("document.activeElement.id === 'text'")
    page.type(text)
    page.press("Enter")


def ended(page: Browser) -> None:
    """Wait for the end of the answer, or of the attempt."""
    page.until("document.getElementById('stop').hidden && !document.querySelector('.coming')")


def finished(page: Browser) -> str:
    """Wait for the end of the answer; its text."""
    ended(page)
    return page.text(".log > :last-child .said")


def expected(server: Talking, *messages: tuple[str, str], max_tokens: int = 12) -> str:
    body = {
        "model": MODEL,
        "messages": [{"role": role, "content": text} for role, text in messages],
        "temperature": 0,
        "max_tokens": max_tokens,
    }
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE).json()
    return str(reply["choices"][0]["message"]["content"])


def stored(page: Browser) -> list[dict]:
    """The messages of the conversation as the browser keeps it."""
    found = page.evaluate(
        "new Promise((done) => { const open = indexedDB.open('mindspore-serving');"
        "open.onsuccess = () => { const all = open.result.transaction('conversations')"
        ".objectStore('conversations').getAll();"
        "all.onsuccess = () => { open.result.close(); done(all.result); }; }; })"
    )
    messages = max(found, key=lambda one: one["changed"])["lanes"][0]["messages"]
    return list(messages)


def row(server: Talking) -> dict:
    rows = httpx.get(f"{server.url}/servables", timeout=PATIENCE).json()["servables"]
    return next(one for one in rows if one["name"] == MODEL)


def bodies(page: Browser) -> list[dict]:
    """What the page has posted."""
    return [json.loads(one["postData"]) for one in page.requests if one["method"] == "POST"]


def streamed(*deltas: dict, finish: str = "stop", **more: object) -> str:
    """The body of a stream with one answer; `more` are chunks behind it, by their names."""
    chunks: list[dict] = [{"choices": [{"index": 0, "delta": one}]} for one in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if more:
        chunks.append({"choices": [], **more})
    return "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + "data: [DONE]\n\n"
