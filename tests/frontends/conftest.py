"""Running HTTP servers."""

import pytest

from mindspore_serving.aio import BackgroundLoop
from tests.frontends.http_serving import Web


@pytest.fixture(scope="module")
def background():
    """A loop of the kind that serves: uvloop on a thread."""
    loop = BackgroundLoop()
    yield loop
    loop.close()


@pytest.fixture
def web(background):
    made = Web(background)
    yield made
    made.close()


@pytest.fixture
def web_with_codes(background):
    made = Web(background, use_status_codes=True)
    yield made
    made.close()
