"""The live view in a real Chromium, with a real server."""

import json
import re
import shlex
import shutil
import subprocess

import httpx
import pytest

from mindspore_serving.core.signature import ValueSpec, describe_inputs
from tests.cli.talking import MODEL, Talking
from tests.frontends.page.browser import Browser
from tests.frontends.page.chatting import ask_endlessly, ended
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.torch]


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


def test_the_live_view_shows_the_engines_work(fresh: Browser, server: Talking) -> None:
    ask_endlessly(fresh, "hello")
    eventually(lambda: highest(fresh, "Batch size") == 1)
    eventually(lambda: highest(fresh, "KV blocks used") > 0)
    eventually(lambda: highest(fresh, "Tokens/s") > 1)
    fresh.press("Escape")
    ended(fresh)
    fresh.until("document.querySelector('[data-title=\"Batch size\"] strong').innerText === '0'")
    assert "highest" in chart(fresh, MODEL, "Prefix cache hits")
    points = fresh.evaluate(
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


def test_the_value_under_the_pointer_is_shown(page: Browser) -> None:
    page.click("#views a[href='#live']")
    page.until("document.body.dataset.view === 'live'")
    page.evaluate(
        "(() => { const one = document.querySelector('[data-title=\"Running\"] svg');"
        "const {left, width} = one.getBoundingClientRect();"
        "one.dispatchEvent(new PointerEvent('pointermove', {clientX: left + width - 1})); })()"
    )
    assert page.text("[data-title='Running'] .past").endswith("ago")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_printed_commands_work_as_they_are(page: Browser) -> None:
    page.evaluate("document.querySelectorAll('.how').forEach((one) => { one.open = true })")
    lines = page.evaluate("[...document.querySelectorAll('.how pre')].map((one) => one.innerText)")
    # chat, embeddings and generate of the model; two methods of the servable
    assert len(lines) == 5
    began = {"data: {", '{"object":"list"', '{"instances":[{"finish_reason"', '{"instances":[{"y"'}
    for line in lines:
        words = [*shlex.split(line), "-sN"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as curl:
            assert curl.stdout is not None
            said = curl.stdout.read(40)
            curl.kill()  # the chat has no end
        if ":joined" not in line:  # 1 is no text to join
            began = {start for start in began if not said.startswith(start)}
    assert began == set()


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


def test_the_memory_of_the_cache_is_shown(browser: Browser, server: Talking) -> None:
    rows = httpx.get(f"{server.url}/servables", timeout=PATIENCE).json()["servables"]
    (row,) = [row for row in rows if row["name"] == MODEL]
    row["engine"] |= {
        "num_cache_bytes": 410_000_000,
        "num_cache_bytes_limit": 2_000_000_000,
    }
    for target, words in (
        (2_000_000_000, "cache 410 MB of at most 2.0 GB"),
        (500_000_000, "cache 410 MB of at most 2.0 GB, at present 500 MB"),
    ):
        row["engine"]["num_cache_bytes_target"] = target
        browser.answer("/servables", 200, json.dumps({"servables": [row]}))
        if "present" not in words:
            browser.open(f"{server.url}/#live")
        facts = "document.querySelector('.facts')?.innerText.split(' · ')"
        browser.until(f"{facts}?.includes('{words}')")
    browser.until("document.querySelector('[data-title=\"Cache memory\"] strong')")
    assert "now 410 MB" in chart(browser, MODEL, "Cache memory")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_command_for_a_model_has_values_of_its_types_and_shapes(
    browser: Browser, server: Talking
) -> None:
    rows = httpx.get(f"{server.url}/servables", timeout=PATIENCE).json()["servables"]
    (row,) = [row for row in rows if row["name"] == "words"]
    double = row["methods"]["double"]
    row["methods"] = {"double": double}
    for dtype, shape, doubled in (
        ("float32", (3,), [2.0] * 3),
        ("int64", (None, 2), [[2, 2]]),
        ("float16", (3, 40, None), [[[2.0]] * 40] * 3),
    ):
        double["input_specs"] = describe_inputs([ValueSpec("x", dtype, shape)])
        browser.answer("/servables", 200, json.dumps({"servables": [row]}))
        browser.open(server.url)
        browser.until("document.querySelectorAll('.how').length === 1")
        line = browser.evaluate("document.querySelector('.how pre').textContent")
        done = subprocess.run(["bash", "-c", f"{line} -s"], capture_output=True, check=True)
        assert json.loads(done.stdout) == {"instances": [{"y": doubled}]}


def test_a_hidden_page_asks_for_nothing(fresh: Browser) -> None:
    fresh.evaluate(
        "Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true});"
        "window.asked = 0; const real = window.fetch;"
        "window.fetch = (...all) => { window.asked += 1; return real(...all); };"
        "window.away = false"
    )
    fresh.until("window.asked > 0")
    fresh.evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
    fresh.evaluate("window.asked = 0; new Promise((done) => setTimeout(done, 1500))")
    assert fresh.evaluate("window.asked") == 0
    fresh.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    fresh.until("window.asked > 0")


def test_charts_begin_with_the_servers_history(browser: Browser, server: Talking) -> None:
    shown = httpx.get(f"{server.url}/servables/history", timeout=PATIENCE).json()
    width = len(shown["columns"])
    waiting = shown["columns"].index("requests.waiting")
    rows = [[age, *[None] * (width - 1)] for age in range(600, 0, -5)]
    for row in rows:
        row[waiting] = 77
    shown["servables"] = [{"name": "words", "version": 1, "rows": rows}]
    browser.answer("/servables/history", 200, json.dumps(shown))
    browser.open(f"{server.url}/#live")
    browser.until("document.querySelectorAll('.card').length === 2")
    assert "highest 77" in chart(browser, "words", "Waiting")


def test_language_models_come_first_and_a_closed_card_stays_closed(
    browser: Browser, server: Talking
) -> None:
    titles = "[...document.querySelectorAll('.card h3')].map((one) => one.textContent)"
    browser.open(f"{server.url}/#live")
    browser.until("document.querySelectorAll('.card').length === 2")
    assert browser.evaluate(titles)[0].startswith(MODEL)
    browser.click(".card:nth-child(2) > summary")
    browser.until("!document.querySelectorAll('.card')[1].open")
    browser.until("localStorage['mindspore-serving-closed']?.includes('words')")
    browser.open(f"{server.url}/?again#live")
    browser.until("document.querySelectorAll('.card').length === 2")
    opened = "[...document.querySelectorAll('.card')].map((one) => one.open)"
    assert browser.evaluate(opened) == [True, False]
