"""Static graphs of the mindspore runtime, against the reference implementation and eager mode."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mindspore")
pytest.importorskip("transformers")

from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, Runner, Step
from tests.llm import checkpoints
from tests.llm.running import advance, check_crowd, generate, generate_staggered, texts

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]
# test_mindir_runner has all models of the cell.
FAMILY = (
    "llama",
    *(pytest.param(n, marks=pytest.mark.long) for n in ("qwen3", "qwen2", "mistral")),
)
SMALL = EngineConfig(  # four graphs
    block_size=8,
    kv_cache_memory=2**20,
    max_num_seqs=2,
    max_num_batched_tokens=30,
    graph_mode=True,
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def llama(directory: Path) -> Path:
    return checkpoints.build("llama", directory / "alone", num_hidden_layers=2)


@pytest.fixture(scope="module")
def compiled(llama: Path) -> Runner:
    return open_runner(llama, "mindspore", SMALL)


@pytest.mark.parametrize("name", FAMILY)
def test_greedy_tokens_are_those_of_the_reference_and_of_eager_mode(
    name: str, directory: Path, llama: Path, compiled: Runner
) -> None:
    """Three texts in graphs of two and one, prompts in pieces beside a text that decodes."""
    source = llama
    if name != "llama":
        source = checkpoints.build(name, directory, num_hidden_layers=2)
        compiled = open_runner(source, "mindspore", SMALL)
    eager = EngineConfig(block_size=8, kv_cache_memory=2**20)
    prompts = checkpoints.prompts(3)
    found = []
    for runner, count in ((compiled, 48), (open_runner(source, "mindspore", eager), 16)):
        found.append(generate_staggered(runner, texts(runner, prompts, count), count, chunk=13))
    for prompt, answer, eagerly in zip(prompts, *found, strict=True):
        assert len(answer) == 48
        assert answer == checkpoints.likeliest(source, prompt, answer)
        assert answer[:16] == eagerly


def test_logits_are_those_of_the_reference(llama: Path, compiled: Runner) -> None:
    """Of every token of a prompt that fills no graph, beside a text without any."""
    prompts = checkpoints.prompts(2, longest=20)
    first, second = texts(compiled, prompts, 0)
    rows = (Row(second.tokens, 0, second.blocks, 0), Row(first.tokens, 0, first.blocks, 20))
    found = compiled.run(Step(rows))
    expected = checkpoints.logits(llama, prompts[0])
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


def test_refused_row_leaves_the_cache_unchanged(llama: Path, compiled: Runner) -> None:
    """Also one that is wider than every graph."""
    prompt = checkpoints.prompts(1, longest=30)[0]
    (text,) = texts(compiled, [prompt], 4)
    advance(compiled, [text])
    overwriting = Row([1] * 8, 0, text.blocks, 1)
    wide = Row([1] * 33, 0, range(5), 1)
    for row, words in ((Row([1], 0, [compiled.num_blocks], 1), "row 1 has"), (wide, "33 new")):
        with pytest.raises(ServingError, match=words):
            compiled.run(Step((overwriting, row)))
    (answer,) = generate(compiled, [text], 4)
    assert answer == checkpoints.likeliest(llama, prompt, answer)


def test_concurrent_requests_match_the_reference(llama: Path) -> None:
    """Guesses are verified beside texts that have none."""
    graphs = {"graph_mode": True, "max_num_seqs": 4, "max_num_batched_tokens": 16}
    check_crowd(llama, "mindspore", **graphs, num_speculative_tokens=3, layers=2)


def test_nothing_is_compiled_after_the_start(
    compiled: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the past, the sequences and their tokens."""
    from mindspore.common.api import _CellGraphExecutor

    compiles = []
    compile_cell = _CellGraphExecutor.compile

    def counted(self, *args, **kwargs):
        phase, is_new = compile_cell(self, *args, **kwargs)
        compiles.append(is_new)
        return phase, is_new

    monkeypatch.setattr(_CellGraphExecutor, "compile", counted)
    batch = texts(compiled, checkpoints.prompts(3, seed=4, longest=50), 9)
    generate_staggered(compiled, batch, 9, chunk=23)
    assert len(compiles) > 9
    assert not any(compiles)


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "mixtral", "baichuan2-13b"])
def test_a_model_of_another_shape_is_refused(name: str, directory: Path) -> None:
    source = checkpoints.build(name, directory)
    with pytest.raises(StartError, match=r"not shaped like Llama, .* without graph_mode"):
        open_runner(source, "mindspore", SMALL)


def test_weights_that_do_not_fit_the_config_are_refused_at_the_start(
    llama: Path, tmp_path: Path
) -> None:
    given = json.loads((llama / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes((llama / "model.safetensors").read_bytes())
    for wrong in ({"num_key_value_heads": 1}, {"vocab_size": 99}):
        (tmp_path / "config.json").write_text(json.dumps(given | wrong))
        with pytest.raises(StartError, match=r"config.json"):
            open_runner(tmp_path, "mindspore", SMALL)


@pytest.mark.parametrize("runtime", ["agents", "mindir", "openvino", "torch"])
def test_runtime_without_graph_mode_refuses_the_option(tmp_path: Path, runtime: str) -> None:
    with pytest.raises(StartError, match=f"runtime '{runtime}' has no graph_mode"):
        open_runner(tmp_path, runtime, EngineConfig(graph_mode=True))
