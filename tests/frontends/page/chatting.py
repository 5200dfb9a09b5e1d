"""What a person does in the chat of the page, and what the browser then has."""

import json

import httpx

from tests.cli.talking import MODEL, Talking
from tests.frontends.page.browser import Browser
from tests.waiting import PATIENCE, eventually

SETTINGS = {"temperature": "0", "max_tokens": "12"}  # of a page that has just been opened
_BEGIN_ANEW = """
((settings) => {
  if (window.real) window.fetch = window.real;
  for (const one of document.querySelectorAll("dialog[open]")) one.close();
  for (const one of document.querySelectorAll("#attached button")) one.click();
  for (const one of document.querySelectorAll("[id^=set-]")) {
    if (one.type === "checkbox" && one.checked) one.click();
    const value = settings[one.id.slice("set-".length)] ?? "";
    if (one.type === "checkbox" || one.value === value) continue;
    one.value = value;
    one.dispatchEvent(new Event("input"));
  }
  location.hash = "#chat";
  const text = document.getElementById("text");
  text.value = "";
  text.dispatchEvent(new Event("input"));
  document.getElementById("new").click();
})(%s)
"""


def open_chat(page: Browser, server: Talking) -> None:
    """Open the page, with SETTINGS."""
    page.remember("settings", SETTINGS)
    page.open(server.url)
    page.until("document.body.dataset.chat === 'yes' && document.querySelector('.card')")


def begin_anew(page: Browser) -> None:
    """Begin a new conversation, with nothing of what was typed, chosen or attached before."""
    page.evaluate(_BEGIN_ANEW % json.dumps(SETTINGS))
    page.until(
        "document.body.dataset.view === 'chat' && document.querySelector('.welcome')"
        " && !document.querySelector('.message, .failure p, #attached li')"
    )


def settings(page: Browser, **values: str) -> None:
    """Type into the fields of the settings."""
    open_settings(page)
    for name, value in values.items():
        _focus(page, f"set-{name}")
        page.evaluate(f"document.getElementById('set-{name}').select()")
        page.evaluate("document.execCommand('delete')")
        page.type(value)
        page.until(f"document.getElementById('set-{name}').value === {json.dumps(value)}")
    page.click("#settings-close")
    page.until("!document.getElementById('settings').open")


def open_settings(page: Browser) -> None:
    """Open the dialog, and its groups."""
    page.click("#open-settings")
    page.until("document.getElementById('settings').open")
    page.evaluate(
        "for (const one of document.querySelectorAll('#settings details')) one.open = true"
    )


def _focus(page: Browser, field: str) -> None:
    """Click a field until it has the focus: a first click may precede the drawing of its dialog."""

    def is_focused() -> bool:
        page.click(f"#{field}")
        return bool(page.evaluate("document.activeElement.id") == field)

    eventually(is_focused)


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


def record(page: Browser) -> None:
    """From now on keep what the server says to the page."""
    page.evaluate(
        "(() => { const real = window.fetch; window.real ??= real;"
        "window.fetch = async (...all) => {"
        "const reply = await real(...all);"
        "if (all[0].endsWith('completions')) window.said = reply.clone().text();"
        "return reply; }; })()"
    )


def recorded(page: Browser) -> str:
    """The text of the last answer as the server sent it."""
    lines = page.evaluate("window.said").splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def stored(page: Browser) -> list[dict]:
    """Return the messages of the latest conversation that the browser has stored."""
    latest = max(_stored_conversations(page), key=lambda conversation: conversation["changed"])
    return list(latest["lanes"][0]["messages"])


def reopen(page: Browser, server: Talking, num_answers: int) -> None:
    """Open the page again, once that many conversations are stored with an answer at their end.

    A browser drops what it has not stored yet when it leaves a page.
    """

    def are_stored() -> bool:
        ends = [each["lanes"][0]["messages"][-1] for each in _stored_conversations(page)]
        return [end["role"] for end in ends if end["content"]] == ["assistant"] * num_answers

    eventually(are_stored, what=f"{num_answers} stored conversations")
    page.open(f"{server.url}/?again")


def _stored_conversations(page: Browser) -> list[dict]:
    conversations: list[dict] = page.evaluate(
        "new Promise((done) => { const open = indexedDB.open('mindspore-serving');"
        "open.onsuccess = () => { const all = open.result.transaction('conversations')"
        ".objectStore('conversations').getAll();"
        "all.onsuccess = () => { open.result.close(); done(all.result); }; }; })"
    )
    return conversations


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


def answers(page: Browser, *pieces: str) -> None:
    """From now on the model says that."""
    stream = streamed(*({"content": one} for one in pieces))
    page.answer("/v1/chat/completions", 200, stream, "text/event-stream")


def ask_endlessly(page: Browser, question: str) -> None:
    """Ask for an answer of all kinds of tokens without an end, and at most 60,000 of them.

    Draft tokens would make greedy answers faster than a test can look.
    """
    settings(page, max_tokens="60000", temperature="1", top_p="1")
    page.evaluate(
        "(() => { const real = window.fetch; window.real ??= real;"
        "window.fetch = (url, options) => {"
        "if (!String(url).endsWith('completions')) return real(url, options);"
        "const body = { ...JSON.parse(options.body), ignore_eos: true };"
        "return real(url, { ...options, body: JSON.stringify(body) }); }; })()"
    )
    ask(page, question)


def hold(page: Browser, *pieces: str) -> None:
    """From now on the model says that, and then nothing until it is stopped."""
    chunks = [{"choices": [{"index": 0, "delta": {"content": one}}]} for one in pieces]
    lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    page.evaluate(
        "(() => { const real = window.fetch; window.real ??= real;"
        "window.fetch = async (...all) => {"
        "if (!String(all[0]).endsWith('completions')) return real(...all);"
        "const body = new ReadableStream({ start(stream) {"
        f"stream.enqueue(new TextEncoder().encode({json.dumps(lines)}));"
        "all[1].signal.onabort = () => stream.error(new DOMException('', 'AbortError')); } });"
        "return new Response(body, { headers: { 'content-type': 'text/event-stream' } }); }; })()"
    )
