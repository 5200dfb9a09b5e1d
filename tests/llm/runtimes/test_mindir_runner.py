"""Language models as MindIR files, against the reference implementation."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mindspore")
pytest.importorskip("transformers")

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.export_mindir import export_mindir, main
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, Runner, Step
from tests.llm import checkpoints
from tests.llm.running import check_crowd, generate, generate_staggered, texts

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]
COUNT = 24  # greedy tokens
FAMILY = ("llama", "qwen3", "mistral")
SIMILAR = ("llama3-tied", "llama-biased", "qwen2", "phi3", "internlm2")  # rows of the same cell


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def exported(name: str, directory: Path) -> tuple[Path, Path]:
    """(checkpoint, its export)."""
    source, target = directory / name, directory / f"{name}-mindir"
    if not target.exists():
        export_mindir(checkpoints.build(name, directory, num_hidden_layers=2), target)
    return source, target


@pytest.fixture(
    scope="module",
    params=[*FAMILY, *(pytest.param(name, marks=pytest.mark.long) for name in SIMILAR)],
)
def model(request: pytest.FixtureRequest, directory: Path) -> tuple[Path, Path]:
    return exported(request.param, directory)


@pytest.fixture(scope="module")
def llama(directory: Path) -> tuple[Path, Path]:
    return exported("llama", directory)


def opened(path: Path) -> Runner:
    return open_runner(path, "mindir", EngineConfig(block_size=8, kv_cache_memory=2**20))


def test_logits_and_greedy_tokens_are_those_of_the_reference(model: tuple[Path, Path]) -> None:
    """Logits of a whole prompt; three texts in one batch, prompts in pieces beside a text that
    decodes."""
    source, target = model
    runner = opened(target)
    prompts = checkpoints.prompts(3)
    row = Row(prompts[0], 0, range(-(-len(prompts[0]) // 8)), len(prompts[0]))
    expected = checkpoints.logits(source, prompts[0])
    found = runner.run(Step((row,)))
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()
    answers = generate_staggered(runner, texts(runner, prompts, COUNT), COUNT, chunk=17)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer) == COUNT
        assert answer == checkpoints.likeliest(source, prompt, answer)


def test_logits_of_a_step_are_in_the_order_of_its_rows(llama: tuple[Path, Path]) -> None:
    """Rows of every length, which go into calls of their own, some without logits."""
    source, target = llama
    runner = opened(target)
    prompts = [checkpoints.prompts(1, seed=n, longest=n)[0] for n in (5, 1, 30, 6, 1, 2)]
    wanted = (2, 1, 0, 6, 0, 1)
    rows = [
        Row(text.tokens, 0, text.blocks, count)
        for text, count in zip(texts(runner, prompts, 0), wanted, strict=True)
    ]
    expected = [
        checkpoints.logits(source, prompt)[len(prompt) - count :]
        for prompt, count in zip(prompts, wanted, strict=True)
    ]
    np.testing.assert_allclose(runner.run(Step(tuple(rows))), np.concatenate(expected), atol=1e-4)


@pytest.mark.parametrize("num_speculative_tokens", [0, 3])
def test_concurrent_requests_match_the_reference(
    llama: tuple[Path, Path], num_speculative_tokens: int
) -> None:
    source, target = llama
    check_crowd(
        source, "mindir", exported=target, layers=2, num_speculative_tokens=num_speculative_tokens
    )


@pytest.mark.parametrize(
    "options", [{"quantization": "int8"}, {"dtype": "bf16"}, {"kv_cache_dtype": "u8"}]
)
def test_unsupported_option_is_named(llama: tuple[Path, Path], options: dict[str, object]) -> None:
    (name,) = options
    with pytest.raises(StartError, match=f"{name} is .* mindir runtime accepts"):
        open_runner(llama[1], "mindir", EngineConfig(**options))


def test_a_checkpoint_that_was_not_exported_is_refused(llama: tuple[Path, Path]) -> None:
    with pytest.raises(StartError, match=r"has no prefill.mindir; .*export_mindir"):
        opened(llama[0])


def test_files_that_do_not_fit_the_config_are_refused_at_the_start(
    llama: tuple[Path, Path], tmp_path: Path
) -> None:
    target = tmp_path / "changed"
    shutil.copytree(llama[1], target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"vocab_size": 99}))
    with pytest.raises(StartError, match="do not fit"):
        opened(target)
    (target / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    with pytest.raises(StartError, match="do not fit"):
        opened(target)


def test_a_cut_off_file_is_refused_by_name(llama: tuple[Path, Path], tmp_path: Path) -> None:
    target = tmp_path / "cut"
    shutil.copytree(llama[1], target)
    content = (target / "decode.mindir").read_bytes()
    (target / "decode.mindir").write_bytes(content[: len(content) // 2])
    with pytest.raises(StartError, match=r"decode.mindir cannot be loaded"):
        opened(target)


def test_weights_beside_their_graph_are_loaded(
    llama: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MindSpore writes models over 1 GiB; here the limit, in KiB, is lowered."""
    source, target = llama[0], tmp_path / "large"
    monkeypatch.setattr("mindspore.train.serialization.TOTAL_SAVE", 1)
    export_mindir(source, target)
    assert (target / "prefill_variables" / "data_0").is_file()
    assert not (target / "prefill.mindir").exists()
    runner = opened(target)
    prompt = checkpoints.prompts(1)[0]
    (answer,) = generate(runner, texts(runner, [prompt], 32), 32)
    assert answer == checkpoints.likeliest(source, prompt, answer)


def test_argmax_and_top_k_are_those_of_numpy(llama: tuple[Path, Path]) -> None:
    logits = np.random.default_rng(5).normal(size=(3, checkpoints.VOCAB)).astype(np.float32)
    import mindspore

    given = mindspore.Tensor(logits)
    found = mindspore.nn.GraphCell(mindspore.load(str(llama[1] / "argmax.mindir")))(given)
    assert found.asnumpy().tolist() == logits.argmax(-1).tolist()
    temperature = np.array([[1.0], [2.0], [0.5]], np.float32)
    top_k = mindspore.nn.GraphCell(mindspore.load(str(llama[1] / "topk.mindir")))
    values, tokens = (out.asnumpy() for out in top_k(given, mindspore.Tensor(temperature)))
    order = (-logits).argsort(-1)[:, :100]
    np.testing.assert_array_equal(tokens, order)
    np.testing.assert_allclose(values, np.take_along_axis(logits, order, -1) / temperature)


def test_the_export_has_the_tokenizer_and_can_be_removed(tmp_path: Path) -> None:
    source = checkpoints.build("llama", tmp_path, num_hidden_layers=1)
    target = tmp_path / "made" / "export"
    (source / "tokenizer.json").write_text("{}")
    assert main([str(source), str(target)]) == 0
    names = {path.name for path in target.iterdir()}
    graphs = {"prefill.mindir", "decode.mindir", "argmax.mindir", "topk.mindir"}
    assert names >= graphs | {"config.json", "tokenizer.json"}
    assert not any(name.endswith(".safetensors") for name in names)
    assert all((target / name).stat().st_mode & 0o200 for name in names)
    assert [path.name for path in target.parent.iterdir()] == ["export"]


def test_a_target_that_exists_is_left_alone(
    llama: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(llama[0]), str(tmp_path)]) == 1
    assert f"{tmp_path} exists" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "words"), [("gpt2", "not shaped like Llama"), ("mixtral", "not shaped like Llama")]
)
def test_a_model_of_another_shape_is_refused(tmp_path: Path, name: str, words: str) -> None:
    source = checkpoints.build(name, tmp_path)
    with pytest.raises(StartError, match=words):
        export_mindir(source, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_failed_export_names_tensor_and_leaves_no_files(tmp_path: Path) -> None:
    source = checkpoints.build("llama", tmp_path)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    with pytest.raises(StartError, match=r"no tensor 'model.layers.3"):
        export_mindir(source, tmp_path / "out" / "target")
    assert not list((tmp_path / "out").iterdir())
