"""What is said of an engine that cannot start."""

from dataclasses import replace
from pathlib import Path

import pytest

from mindspore_serving import server
from mindspore_serving.errors import ServingError
from mindspore_serving.process.interpreter import CACHE
from tests.engines.served import KINDS, Kind, environment, model, start_config

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


@pytest.mark.parametrize("kind", KINDS[1:2], ids=lambda kind: kind.engine)
def test_an_adapter_that_the_engine_cannot_load_is_named(kind: Kind, place: Path) -> None:
    environment(kind)
    from tests.llm import lora_files

    tensors = lora_files.adapter(model(kind, place), lora_files.INNER, 1)
    lora_files.write(place / "adapter", tensors)  # vLLM wants to read there which modules it has
    options = {**kind.llm_options, "adapters": {"one": str(place / "adapter")}}
    with pytest.raises(ServingError, match="vllm cannot load the adapter 'one': .*target_modules"):
        server.start_servables(start_config(replace(kind, llm_options=options), place))
