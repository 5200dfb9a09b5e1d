"""How the page looks, and how it is for those who cannot see it."""

from pathlib import Path

import pytest

from tests.cli.talking import Talking
from tests.frontends.page.browser import Browser
from tests.frontends.page.chatting import ask, ended, finished, hold, open_settings

pytestmark = [pytest.mark.e2e, pytest.mark.torch]


CONTROLS = {
    *("button", "textbox", "combobox", "checkbox", "link", "searchbox", "image", "listbox"),
    "DisclosureTriangle",
}


def show(page: Browser, view: str) -> None:
    page.click(f"#views a[href='#{view}']")
    page.until(f"document.body.dataset.view === '{view}'")


@pytest.mark.parametrize("width", [320, 390, 768, 1200])
def test_nothing_sticks_out_at_any_width(page: Browser, width: int) -> None:
    page.look(width, 700)
    ask(page, "w" * 300)
    finished(page)
    for view in ("chat", "call", "live"):
        show(page, view)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        outside = page.evaluate(
            "[...document.querySelectorAll('button, input, select, textarea, .card, .chart, pre')]"
            ".filter((one) => one.checkVisibility()"
            " && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML)"
        )
        assert outside == []


def test_a_phone_shows_a_single_view(page: Browser) -> None:
    page.look(390, 780)
    assert page.evaluate("document.getElementById('chat').checkVisibility()")
    assert not page.evaluate("document.getElementById('live').checkVisibility()")
    show(page, "live")
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


SHOWN = "document.querySelector('.log > :last-child').innerText"
COMING = "document.querySelector('.coming .said')?.innerText.length"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_how_an_answer_ended_is_said_at_its_end_alone(
    page: Browser, width: int, scheme: str, tmp_path: Path
) -> None:
    page.look(width, 780, scheme)
    hold(page, *["word "] * 50)
    ask(page, "hello")
    page.until(f"{COMING} > 200")
    assert "stopped" not in page.evaluate(SHOWN)
    assert page.evaluate("document.querySelectorAll('.log .note, .log .error').length") == 0
    assert page.evaluate("!document.getElementById('stop').hidden")
    page.screenshot(tmp_path / "coming.png")
    page.click("#stop")
    ended(page)
    assert page.text(".log .note").strip() == "stopped"
    page.screenshot(tmp_path / "stopped.png")
    page.click(".log > :last-child .resume")
    page.until(f"{COMING} > 300")
    assert "stopped" not in page.evaluate(SHOWN)
    page.click("#stop")
    ended(page)
    pictures = {path.read_bytes() for path in tmp_path.glob("*.png")}
    assert len(pictures) == 2


def test_an_answer_that_was_cut_off_says_so(page: Browser) -> None:
    ask(page, "hello")
    finished(page)
    assert "cut off" in page.text(".log .note")


OVERLAPS = """
[...document.querySelectorAll('#live .chart')].flatMap((chart) => {
  const picture = chart.querySelector('svg').getBoundingClientRect();
  const isOver = (label) => {
    const words = document.createRange();
    words.selectNodeContents(label);
    const box = words.getBoundingClientRect();
    return box.height && box.bottom > picture.top + 0.5 && box.top < picture.bottom - 0.5;
  };
  return [...chart.querySelectorAll('.axis')].filter(isOver);
}).length
"""


@pytest.mark.parametrize("width", [390, 1280])
def test_labels_of_axes_lie_outside_of_the_picture_of_a_chart(page: Browser, width: int) -> None:
    page.look(width, 780)
    ask(page, "hello")
    finished(page)
    show(page, "live")
    page.until("document.querySelector('.chart .axis.top').innerText")
    assert page.evaluate("document.querySelectorAll('#live .chart').length") > 5
    assert page.evaluate(OVERLAPS) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(page: Browser, scheme: str) -> None:
    page.look(1200, 900, scheme)
    ask(page, "hello")
    finished(page)
    found = page.evaluate(CONTRASTS)
    open_settings(page)
    found += page.evaluate(CONTRASTS)
    assert len(found) > 30
    assert [one for one in found if one[0] < 4.5] == []


def test_every_control_has_a_name(page: Browser) -> None:
    ask(page, "hello")
    finished(page)
    roles = set()
    for state in ("chat", "settings", "live"):
        if state == "settings":
            open_settings(page)
        if state == "live":
            page.click("#settings-close")
            show(page, "live")
        tree = page.call("Accessibility.getFullAXTree")["nodes"]
        named = [
            (node["role"]["value"], node["name"]["value"])
            for node in tree
            if not node["ignored"] and node["role"]["value"] in CONTROLS
        ]
        assert [one for one in named if not one[1].strip()] == [], state
        roles |= {role for role, _ in named}
    assert {"button", "textbox", "combobox", "checkbox", "link", "image"} <= roles


def test_everything_comes_from_the_server_itself(fresh: Browser, server: Talking) -> None:
    ask(fresh, "hello")
    finished(fresh)
    assert {one["url"].split("/")[2] for one in fresh.requests} == {f"127.0.0.1:{server.port}"}
