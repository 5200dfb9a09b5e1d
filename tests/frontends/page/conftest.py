"""A browser, and servers to look at; without Chromium the tests are skipped."""

from collections.abc import Iterator

import pytest

from tests.cli.talking import Talking, talking
from tests.frontends.page.browser import CHROMIUM, Browser
from tests.frontends.page.chatting import begin_anew, open_chat
from tests.frontends.page.sharing import shared


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
def page(request: pytest.FixtureRequest, chromium: Browser, server: Talking) -> Iterator[Browser]:
    """With a model to talk to and a new conversation; answers are short and always the same.

    Opened once for tests that follow each other: what they do to the page itself, they undo.
    """
    yield from shared(
        request, chromium, "chat", lambda: open_chat(chromium, server), lambda: begin_anew(chromium)
    )


@pytest.fixture
def fresh(browser: Browser, server: Talking) -> Browser:
    """The same, but the page is opened for this test alone."""
    open_chat(browser, server)
    return browser
