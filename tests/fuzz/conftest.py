"""One server for the tests of a file; `server` ends with no process left."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.server import Server, wait_until_gone
from tests.fuzz import campaign
from tests.waiting import PATIENCE


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.fuzz)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = campaign.start(tmp_path_factory.mktemp("fuzz"))
    try:
        yield found
        found.script.send(signal.SIGTERM)
        assert found.script.status(PATIENCE) == 0, found.script.text
        assert wait_until_gone(found.pids(), 60), "processes are left"
    finally:
        found.close()
