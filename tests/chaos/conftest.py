"""The short form is run with all other tests, the long one where CHAOS is set."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.sharing import Shared


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.chaos)
    if "CHAOS" not in os.environ:
        long = [item for item in items if item.get_closest_marker("chaos_long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    found = Shared(tmp_path_factory.mktemp("chaos"))
    yield found
    found.close()
