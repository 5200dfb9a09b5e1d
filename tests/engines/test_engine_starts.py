"""What is said of an engine that cannot start."""

from pathlib import Path

import pytest

from mindspore_serving import server
from mindspore_serving.cluster.interpreter import CACHE
from mindspore_serving.errors import ServingError
from tests.engines.served import KINDS, Kind, start_config

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def place(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE, str(stopped / "cache"))
    return stopped


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.engine)
def test_options_that_the_engine_does_not_know_are_named(kind: Kind, place: Path) -> None:
    with pytest.raises(ServingError, match=f"engine '{kind.engine}' has no option 'no_such'"):
        server.start_servables(start_config(kind, place, no_such=1))


@pytest.mark.parametrize("kind", KINDS[1:2], ids=lambda kind: kind.engine)
def test_an_engine_that_dies_while_loading_says_why(kind: Kind, place: Path) -> None:
    with pytest.raises(ServingError, match=r"engine vllm cannot open the model: .*block size"):
        server.start_servables(start_config(kind, place, block_size=5))
