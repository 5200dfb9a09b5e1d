"""A server over a model of the test's own, see `serving`."""

from collections.abc import Iterator

import pytest

from tests.frontends.openai.serving import Web, serving


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as running:
        yield running
