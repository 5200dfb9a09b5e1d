"""A browser, and servers to look at; without Chromium the tests are skipped."""

from collections.abc import Iterator

import pytest

from tests.cli.talking import Talking, talking
from tests.frontends.page.browser import CHROMIUM, Browser
from tests.frontends.page.chatting import settings


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talking]:
    """A language model that embeds as well, and a classic servable."""
    with talking(tmp_path_factory.mktemp("talking"), "--llm-option", "embeddings=true") as running:
        yield running


@pytest.fixture(scope="package")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """As if it had never been used.  A test fails if the page logged or threw anything."""
    chromium.forget()
    chromium.look(1200, 800)
    yield chromium
    chromium.pass_on()
    assert chromium.complaints == []


@pytest.fixture
def page(browser: Browser, server: Talking) -> Browser:
    """Opened, with a model to talk to; answers are short and always the same."""
    browser.open(server.url)
    browser.until("document.body.dataset.chat === 'yes' && document.querySelector('.card')")
    settings(browser, temperature="0", max_tokens="12")
    return browser
