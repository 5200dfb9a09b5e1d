"""A hub of Hugging Face's protocol for the tests, and an empty cache."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from mindspore_serving.hub import resolve as resolving
from tests.hub.hugging_face_server import Hub, hugging_face


@pytest.fixture(scope="module")
def hub_server() -> Iterator[Hub]:
    with hugging_face() as hub:
        yield hub


@pytest.fixture
def hub(hub_server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub without repositories and faults; the library's variables name it."""
    hub_server.__init__(url=hub_server.url, cdn=hub_server.cdn)  # type: ignore[misc]
    monkeypatch.setenv("HF_ENDPOINT", hub_server.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # --offline sets it
    for name in ("HF_TOKEN", "MINDSPORE_SERVING_SOURCES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setattr(resolving, "_paths", {})
    return hub_server
