"""axe-core finds nothing wrong with the page: every state, three sizes, light and dark."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.talking import Talking
from tests.frontends.page.browser import Browser
from tests.frontends.page.chatting import ask, ended, finished, streamed

needs_axe = pytest.mark.skipif(
    find_spec("axe_core_python") is None, reason="axe-core-python is not installed"
)
pytestmark = [pytest.mark.e2e, pytest.mark.torch, needs_axe]
COMPLETIONS = "/v1/chat/completions"
ANSWER = """# Title
**bold** `code` [web](https://web.invalid/) $x$

- one

```python
print()
```

| a | b |
|---|---|
| 1 | 2 |"""
SIZES = ((390, 780), (768, 1000), (1280, 800))
RUN = """
axe.run(document, {resultTypes: ['violations'], preload: false, runOnly: %s}).then((found) =>
  found.violations.map((one) => [one.id, one.nodes[0].html.slice(0, 150)]))
"""


def load_axe(page: Browser) -> None:
    import axe_core_python

    source = Path(axe_core_python.__file__).parent / "axe.min.js"
    page.evaluate(f"{source.read_text()};0")


def check(page: Browser, state: str) -> None:
    """At each of three sizes all rules in light, and those of colours in dark."""
    for width, height in SIZES:
        for scheme, rules in (("light", "undefined"), ("dark", "['color-contrast']")):
            page.look(width, height, scheme)
            assert page.evaluate(RUN % rules) == [], f"{state}, {width} x {height}, {scheme}"


def show(page: Browser, view: str) -> None:
    page.evaluate(f"location.hash = '#{view}'")
    page.until(f"document.body.dataset.view === '{view}'")


def test_axe_finds_nothing(browser: Browser, server: Talking) -> None:
    browser.open(server.url)
    browser.until("document.body.dataset.chat === 'yes'")
    load_axe(browser)
    check(browser, "no conversation")
    answer = streamed({"reasoning_content": "hm"}, {"content": ANSWER})
    browser.answer(COMPLETIONS, 200, answer, "text/event-stream")
    ask(browser, "Show me")
    finished(browser)
    check(browser, "an answer")
    browser.answer(COMPLETIONS, 400, '{"error": {"message": "too hot", "param": "temperature"}}')
    ask(browser, "Again")
    ended(browser)
    browser.excuse()  # Chromium logs the status
    browser.evaluate("document.getElementById('compare').click()")
    check(browser, "an error, two models")
    browser.evaluate("document.getElementById('open-settings').click()")
    check(browser, "settings")
    browser.evaluate("document.getElementById('settings').close()")
    show(browser, "call")
    browser.evaluate("document.querySelector('#call-form .main').click()")
    browser.until("document.querySelector('#reply').children.length > 1")
    browser.complaints.clear()  # the example may be refused
    check(browser, "a call")
    show(browser, "live")
    opened = (
        "document.querySelectorAll('.card, .card details').forEach((one) => { one.open = true })"
    )
    browser.evaluate(opened)
    check(browser, "live")
