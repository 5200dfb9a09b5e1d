"""The page in a real Chromium, over a real server with a real, if senseless, model."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import write_words
from tests.cli.talking import MODEL, Talking, serving
from tests.e2e.harness import eventually
from tests.frontends.page.browser import Browser
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.torch]
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture
def page(browser: Browser, server: Talking) -> Browser:
    """Opened, with a model to talk to; answers are short and always the same."""
    browser.open(server.url)
    browser.until("document.body.dataset.chat === 'yes' && document.querySelector('.card')")
    settings(browser, temperature="0", **{"max-tokens": "12"})
    return browser


def settings(page: Browser, **values: str) -> None:
    """Type into the fields of the settings."""
    page.evaluate("document.getElementById('settings').open = true")
    for name, value in values.items():
        page.click(f"#{name}")
        page.evaluate(f"document.getElementById('{name}').select()")
        page.evaluate("document.execCommand('delete')")
        page.type(value)
    page.evaluate("document.getElementById('settings').open = false")


def ask(page: Browser, text: str) -> None:
    page.click("#text")
    page.type(text)
    page.press("Enter")


def finished(page: Browser) -> str:
    """Wait for the end of the answer; its text."""
    page.until("document.getElementById('stop').hidden && !document.querySelector('.coming')")
    return page.text("#log li:last-child .said")


def expected(server: Talking, *messages: tuple[str, str], max_tokens: int = 12) -> str:
    body = {
        "model": MODEL,
        "messages": [{"role": role, "content": text} for role, text in messages],
        "temperature": 0,
        "max_tokens": max_tokens,
    }
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE).json()
    return str(reply["choices"][0]["message"]["content"])


def row(server: Talking) -> dict:
    rows = httpx.get(f"{server.url}/servables", timeout=PATIENCE).json()["servables"]
    return next(one for one in rows if one["name"] == MODEL)


def bodies(page: Browser) -> list[dict]:
    """What the page has posted."""
    return [json.loads(one["postData"]) for one in page.requests if one["method"] == "POST"]


def test_only_a_browser_gets_the_page(server: Talking) -> None:
    headers = {"accept": "text/html"}
    assert "<!doctype html>" in httpx.get(server.url, headers=headers, timeout=PATIENCE).text
    assert "<!doctype html>" not in httpx.get(server.url, timeout=PATIENCE).text


def test_an_answer_comes_piece_by_piece_and_is_counted(page: Browser, server: Talking) -> None:
    settings(page, **{"max-tokens": "60000"})
    ask(page, "hello")
    # while it comes there is some of it, a way to stop it, and screen readers wait
    page.until("document.querySelector('.said.coming')?.textContent.length > 5")
    assert page.evaluate("document.getElementById('send').hidden")
    assert not page.evaluate("document.getElementById('stop').hidden")
    assert page.evaluate("document.getElementById('log').ariaBusy") == "true"
    page.press("Escape")
    finished(page)
    page.click("#new")
    settings(page, **{"max-tokens": "2000"})
    ask(page, "hello")
    text = finished(page)
    assert page.evaluate("document.getElementById('log').ariaBusy") == "false"
    whole = page.evaluate("document.querySelector('#log li:last-child .said').textContent")
    assert whole == expected(server, ("user", "hello"), max_tokens=2000)
    assert len(text) > 100
    numbers = page.text("#numbers")
    assert re.fullmatch(
        r"2000 tokens · [\d.,k]+ tokens/s · first after [\d.]+ m?s · prompt \d+( \(\d+ cached\))?",
        numbers,
    )
    assert "cut off" in page.text("#log li:last-child .note")


def test_the_conversation_is_sent_along_until_a_new_one(page: Browser, server: Talking) -> None:
    settings(page, system="Be kind.", **{"top-p": "0.9"})
    ask(page, "one")
    first = finished(page)
    ask(page, "two")
    finished(page)
    page.click("#new")
    assert page.text("#log") == ""
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
    page.open(server.url)
    page.until("document.body.dataset.chat === 'yes'")
    assert page.text("#settings-summary") == "temperature 0, max tokens 12"
    settings(page, temperature="")
    assert page.text("#settings-summary") == "max tokens 12"
    ask(page, "hello")
    finished(page)
    assert "temperature" not in bodies(page)[-1]


@pytest.mark.parametrize("how", ["Escape", "button"])
def test_stopping_an_answer_stops_the_model(page: Browser, server: Talking, how: str) -> None:
    settings(page, **{"max-tokens": "60000"})
    ask(page, "hello")
    page.until("document.querySelector('.said.coming')?.textContent.length > 5")
    assert row(server)["engine"]["num_running"] == 1
    if how == "Escape":
        page.press("Escape")
    else:
        page.click("#stop")
    assert finished(page)
    assert page.text("#log li:last-child .note") == "stopped"
    assert page.text("#numbers").startswith("about ")
    eventually(lambda: row(server)["engine"]["num_running"] == 0, what="the engine stops")
    # what was said stays part of the conversation
    settings(page, **{"max-tokens": "5"})
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
    delta = {"choices": [{"index": 0, "delta": {"content": HOSTILE}, "finish_reason": "stop"}]}
    stream = f"data: {json.dumps(delta)}\n\ndata: [DONE]\n\n"
    page.answer("/v1/chat/completions", 200, stream, "text/event-stream")
    ask(page, HOSTILE)
    assert finished(page) == HOSTILE
    assert page.text("#log li.user .said") == HOSTILE
    assert page.evaluate("document.querySelectorAll('#log img, #log script').length") == 0
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
        (200, 'data: {"choices": []}\n\n', "The connection was lost before the answer's end."),
    ],
)
def test_a_failure_is_told_and_the_question_is_not_lost(
    page: Browser, status: int, body: str, told: str
) -> None:
    page.answer("/v1/chat/completions", status, body, "text/event-stream")
    ask(page, "why?")
    finished(page)
    assert page.text("#log li:last-child .error") == told
    assert page.evaluate("document.getElementById('text').value") == "why?"
    page.pass_on()
    page.complaints.clear()  # Chromium logs the status
    page.press("Enter")
    finished(page)
    assert bodies(page)[-1]["messages"] == [{"role": "user", "content": "why?"}]


def test_reasoning_is_shown_apart(page: Browser) -> None:
    deltas = [{"reasoning_content": "hm, "}, {"reasoning_content": "so"}, {"content": "yes"}]
    chunks = [{"choices": [{"index": 0, "delta": one}]} for one in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    stream = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks)
    page.answer("/v1/chat/completions", 200, stream, "text/event-stream")
    ask(page, "hm?")
    assert finished(page) == "yes"
    thought = page.evaluate("document.querySelector('#log details div').textContent")
    assert thought == "hm, so"


def chart(page: Browser, servable: str, title: str) -> str:
    """What a chart says of itself."""
    found = page.evaluate(
        f"[...document.querySelectorAll('.card')].find("
        f"(card) => card.querySelector('h3').textContent.startsWith('{servable}'))"
        f".querySelector('[data-title=\"{title}\"] svg').ariaLabel"
    )
    return str(found)


def highest(page: Browser, title: str) -> float:
    """Of a chart of the model's, as long as it is in sight; what it shows now may be over soon."""
    found = re.search(r"highest ([\d.,]+)", chart(page, MODEL, title))
    return float(found[1].replace(",", "")) if found else 0.0


def test_the_live_view_shows_what_the_engine_does(page: Browser, server: Talking) -> None:
    settings(page, **{"max-tokens": "60000"})
    ask(page, "hello")
    eventually(lambda: highest(page, "Batch size") == 1)
    eventually(lambda: highest(page, "KV blocks used") > 0)
    eventually(lambda: highest(page, "Tokens/s") > 1)
    page.press("Escape")
    finished(page)
    page.until("document.querySelector('[data-title=\"Batch size\"] strong').innerText === '0'")
    assert "highest" in chart(page, MODEL, "Prefix cache hits")
    points = page.evaluate(
        "document.querySelector('[data-title=\"Batch size\"] .line').getAttribute('d')"
    )
    assert len(set(re.findall(r" (\d+\.\d)", points))) > 1  # a line that went up and down


def test_the_live_view_shows_classic_servables(page: Browser, server: Talking) -> None:
    body = {"instances": [{"x": 1.5}] * 3}
    page.until("document.querySelectorAll('.card').length === 2")
    for _ in range(20):
        url = f"{server.url}/model/words:double"
        httpx.post(url, json=body, timeout=PATIENCE).raise_for_status()
    page.until(
        "[...document.querySelectorAll('.card')].some((card) =>"
        "card.querySelector('h3').textContent.startsWith('words') &&"
        "/highest (?!0)/.test(card.querySelector('[data-title=\"Requests/s\"] svg').ariaLabel))"
    )
    assert "ms" in chart(page, "words", "p99")


def test_the_live_view_shows_on_which_machines_workers_run(
    browser: Browser, server: Talking
) -> None:
    rows = httpx.get(f"{server.url}/servables", timeout=PATIENCE).json()["servables"]
    (row,) = [row for row in rows if row["name"] == "words"]
    row["num_workers"] = 3
    states = {"": "ready", "blue": "ready", "green": "restarting"}
    row["workers"] = [{"node": node, "state": state} for node, state in states.items()]
    row["workers"].append({"node": "blue", "state": "ready"})
    browser.answer("/servables", 200, json.dumps({"servables": [row]}))
    browser.open(server.url)
    browser.until("document.querySelectorAll('.card').length === 1")
    browser.until("document.querySelector('.card').innerText.includes('3 workers')")
    assert "3 workers (1 here, 2 on blue)" in browser.text(".card")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_printed_commands_work_as_they_are(page: Browser) -> None:
    page.evaluate("document.querySelectorAll('.how').forEach((one) => { one.open = true })")
    lines = page.evaluate("[...document.querySelectorAll('pre')].map((one) => one.innerText)")
    # chat, embeddings and generate of the model; two methods of the servable
    assert len(lines) == 5
    began = {"data: {", '{"object":"list"', '{"instances":[{"finish_reason"', '{"instances":[{"y"'}
    for line in lines:
        words = [*shlex.split(line), "-sN"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as curl:
            assert curl.stdout is not None
            said = curl.stdout.read(40)
            curl.kill()  # the chat has no end
        if ":joined" not in line:  # 1.5 is no text to join
            began = {start for start in began if not said.startswith(start)}
    assert began == set()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_command_for_a_model_has_values_of_its_types_and_shapes(
    browser: Browser, server: Talking
) -> None:
    rows = httpx.get(f"{server.url}/servables", timeout=PATIENCE).json()["servables"]
    (row,) = [row for row in rows if row["name"] == "words"]
    double = row["methods"]["double"]
    row["methods"] = {"double": double}
    for dtype, shape, doubled in (
        ("float32", [3], [3.0] * 3),
        ("int64", [None, 2], [[2, 2]]),
        ("float16", [3, 40, None], [[[3.0]] * 40] * 3),
    ):
        double["input_specs"] = [{"name": "x", "dtype": dtype, "shape": shape}]
        browser.answer("/servables", 200, json.dumps({"servables": [row]}))
        browser.open(server.url)
        browser.until("document.querySelectorAll('.how').length === 1")
        line = browser.evaluate("document.querySelector('.how pre').textContent")
        done = subprocess.run(["bash", "-c", f"{line} -s"], capture_output=True, check=True)
        assert json.loads(done.stdout) == {"instances": [{"y": doubled}]}


def test_a_hidden_page_asks_for_nothing(page: Browser) -> None:
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true});"
        "window.asked = 0; const real = window.fetch;"
        "window.fetch = (...all) => { window.asked += 1; return real(...all); };"
        "window.away = false"
    )
    page.until("window.asked > 0")
    page.evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
    page.evaluate("window.asked = 0; new Promise((done) => setTimeout(done, 1500))")
    assert page.evaluate("window.asked") == 0
    page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    page.until("window.asked > 0")


def test_a_server_that_wants_a_key_is_asked_with_one(browser: Browser, server: Talking) -> None:
    refusal = '{"error": {"message": "no key"}}'
    browser.answer("/servables", 401, refusal)
    browser.answer("/v1/models", 401, refusal)
    browser.open(server.url)
    browser.until("document.activeElement.id === 'key'")
    browser.pass_on()
    browser.complaints.clear()  # Chromium logs the status
    browser.type("secret-key")
    browser.press("Enter")
    browser.until("document.body.dataset.chat === 'yes'")
    assert browser.evaluate("document.getElementById('key-form').hidden")
    sent = [one["headers"].get("authorization") for one in browser.requests[-2:]]
    assert sent == ["Bearer secret-key"] * 2
    assert "secret-key" not in browser.evaluate("JSON.stringify(localStorage)")


def test_a_server_with_keys_lets_in_who_types_one_into_the_browsers_own_dialog(
    browser: Browser, tmp_path: Path
) -> None:
    key = "a-key-of-twenty-letters"
    write_words(tmp_path)
    with serving(tmp_path, "words", "--api-key", key) as locked:
        headers = {"accept": "text/html"}
        assert httpx.get(locked.url, headers=headers, timeout=PATIENCE).status_code == 401
        browser.log_in(key)
        browser.open(locked.url)
        browser.until("document.querySelector('.card') && document.body.dataset.chat === 'no'")
        assert browser.evaluate("document.getElementById('key-form').hidden")


def test_where_there_is_no_language_model_calling_is_explained(
    browser: Browser, tmp_path: Path
) -> None:
    write_words(tmp_path)
    with serving(tmp_path, "words") as classic:
        browser.open(classic.url)
        browser.until("document.body.dataset.chat === 'no' && document.querySelector('.card')")
        assert not browser.evaluate("document.getElementById('chat').checkVisibility()")
        assert "double(x) → y" in browser.text(".how")
        assert "chat" not in browser.text(".how")
        lines = browser.evaluate(
            "[...document.querySelectorAll('pre')].map((one) => one.innerText)"
        )
        (line,) = [line for line in lines if ":double" in line]
        if shutil.which("curl"):
            done = subprocess.run([*shlex.split(line), "-s"], capture_output=True, check=True)
            assert json.loads(done.stdout) == {"instances": [{"y": 3.0}]}
        classic.command.end()
        browser.until("document.getElementById('state').innerText === 'The server does not answer'")
    browser.complaints.clear()  # Chromium logs the refused connections


@pytest.mark.parametrize("width", [320, 390, 768, 1200])
def test_nothing_sticks_out_at_any_width(page: Browser, width: int) -> None:
    page.look(width, 700)
    ask(page, "w" * 300)
    finished(page)
    for view in ("view-chat", "view-live"):
        page.evaluate(f"document.getElementById('{view}').click()")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        outside = page.evaluate(
            "[...document.querySelectorAll('button, input, select, textarea, .card, .chart, pre')]"
            ".filter((one) => one.checkVisibility()"
            " && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML)"
        )
        assert outside == []


def test_a_phone_shows_one_view_at_a_time(page: Browser) -> None:
    page.look(390, 780)
    assert page.evaluate("document.getElementById('chat').checkVisibility()")
    assert not page.evaluate("document.getElementById('live').checkVisibility()")
    page.click("label[for=view-live]")
    assert not page.evaluate("document.getElementById('chat').checkVisibility()")
    assert page.evaluate("document.getElementById('live').checkVisibility()")


CONTRASTS = """
(() => {
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const back = (one) => {
    for (; one; one = one.parentElement) {
      const color = parts(getComputedStyle(one).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const one of document.querySelectorAll('body *')) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !one.checkVisibility() || one.closest('.unseen')) continue;
    const [a, b] = [light(parts(getComputedStyle(one).color)), light(back(one))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.push([ratio, one.outerHTML.slice(0, 80)]);
  }
  return found;
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(page: Browser, scheme: str) -> None:
    page.look(1200, 900, scheme)
    page.evaluate("document.getElementById('settings').open = true")
    ask(page, "hello")
    finished(page)
    found = page.evaluate(CONTRASTS)
    assert len(found) > 30
    assert [one for one in found if one[0] < 4.5] == []


def test_every_control_has_a_name(page: Browser) -> None:
    page.evaluate("document.getElementById('settings').open = true")
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    controls = {
        "button",
        "textbox",
        "combobox",
        "spinbutton",
        "radio",
        "image",
        "DisclosureTriangle",
    }
    named = [
        (node["role"]["value"], node["name"]["value"])
        for node in tree
        if not node["ignored"] and node["role"]["value"] in controls
    ]
    assert {"button", "textbox", "combobox", "spinbutton", "image"} <= {role for role, _ in named}
    assert [one for one in named if not one[1].strip()] == []


def test_everything_comes_from_the_server_itself(page: Browser, server: Talking) -> None:
    ask(page, "hello")
    finished(page)
    assert {one["url"].split("/")[2] for one in page.requests} == {f"127.0.0.1:{server.port}"}
