"""Fixtures around `harness`; every test here starts real processes."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving import server
from tests.e2e.harness import Calls, Script, children, config, serving, write_servable
from tests.e2e.machines import Cluster, cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(autouse=True, scope="module")
def started() -> Callable[[], list[int]]:
    """The children of this process, zombies too, but for those from before this file's tests."""
    before = set(children(os.getpid()))
    return lambda: [child for child in children(os.getpid()) if child not in before]


@pytest.fixture(scope="module")
def calls(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Calls]:
    """The servable "toy" of the file's SOURCE, for all its tests; a message may have 1 MB."""
    directory = tmp_path_factory.mktemp("calls")
    write_servable(directory, "toy", request.module.SOURCE)
    with serving(directory, config(directory, "toy"), limit=1) as served:
        yield served


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Calls]]:
    """serve(source, **options of ServableStartConfig): a servable "toy", served until the end."""
    with ExitStack() as stack:

        def start(source: str, **options: Any) -> Calls:
            write_servable(tmp_path, "toy", source)
            return stack.enter_context(serving(tmp_path, config(tmp_path, "toy", **options)))

        yield start


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, and no server left behind in this process."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    server.stop()


@pytest.fixture
def run_script(tmp_path: Path) -> Iterator[Callable[..., Script]]:
    """run_script(source): runs it as the script server.py, and kills it at the end."""
    scripts: list[Script] = []

    def run(source: str, **environment: str) -> Script:
        path = tmp_path / "server.py"
        path.write_text(source)
        scripts.append(Script(path, environment))
        return scripts[-1]

    yield run
    for script in scripts:
        script.end()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for clients; the server is stopped before they are waited for."""
    with ThreadPoolExecutor(8) as threads:
        yield threads
        server.stop()  # whoever still waits in a thread gets an answer


@pytest.fixture
def start_cluster(stopped: Path) -> Iterator[Callable[..., Cluster]]:
    """start_cluster(**options of start_node_server): a server that machines can join."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(cluster(stopped, **options))
