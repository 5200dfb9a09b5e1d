"""A page that tests use one after another: to open it takes longer than most of them."""

from collections.abc import Callable, Iterator

import pytest

from tests.frontends.page.browser import Browser


def shared(
    request: pytest.FixtureRequest,
    browser: Browser,
    name: str,
    open_page: Callable[[], None],
    begin_anew: Callable[[], None],
) -> Iterator[Browser]:
    """The page that tests know as `name`, as of the test before if that one had it and passed.

    A test fails if the page logged or threw anything.
    """
    browser.look(1200, 800)
    if browser.shared == name:
        browser.requests.clear()
        begin_anew()
    else:
        browser.forget()
        open_page()
    browser.shared, num_failed = "", request.session.testsfailed
    yield browser
    browser.pass_on()
    assert browser.complaints == []
    if request.session.testsfailed == num_failed:
        browser.shared = name
