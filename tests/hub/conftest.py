"""Servers of the sources' protocols for the tests, and empty caches."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from mindspore_serving.hub import download
from mindspore_serving.hub import resolve as resolving
from mindspore_serving.hub.threads import NAME
from tests.hub.hugging_face_server import Hub, hugging_face
from tests.hub.servers import FileServer
from tests.waiting import PATIENCE


@pytest.fixture(scope="module")
def hub_server() -> Iterator[Hub]:
    with hugging_face() as hub:
        yield hub


@pytest.fixture
def hub(hub_server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub without repositories and faults; the library's variables name it."""
    hub_server.__init__(url=hub_server.url, cdn=hub_server.cdn)  # type: ignore[misc]
    monkeypatch.setenv("HF_ENDPOINT", hub_server.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # --offline sets it
    monkeypatch.setenv("MINDSPORE_SERVING_SOURCES", "hf")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setattr(resolving, "_paths", {})
    yield hub_server
    for thread in threading.enumerate():  # downloads that an error has stopped
        if thread.name == NAME:
            thread.join(PATIENCE)


@pytest.fixture(scope="module")
def _server() -> Iterator[FileServer]:
    with FileServer().running() as server:
        yield server


@pytest.fixture(scope="module")
def _cdn() -> Iterator[FileServer]:
    with FileServer().running() as server:
        yield server


@pytest.fixture
def cdn(_cdn: FileServer) -> FileServer:
    """A second server without routes, which files are redirected to."""
    _cdn.reset()
    return _cdn


@pytest.fixture
def server(_server: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FileServer:
    """A server without routes; caches are empty, and no second attempt waits."""
    monkeypatch.setenv("MINDSPORE_SERVING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    monkeypatch.setattr(download, "BACKOFF", 0.0)
    monkeypatch.setattr(resolving, "_paths", {})
    _server.reset()
    return _server
