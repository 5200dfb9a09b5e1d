"""Checkpoints of MindFormers, written by MindSpore, hold the tensors of Hugging Face's."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("mindspore")

from safetensors.numpy import load_file

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.quantize import quantize
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints, mindspore_forms
from tests.llm.mindspore_forms import FORMS

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]
RUNTIMES = ("openvino", "torch", "mindspore")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.build("llama", tmp_path_factory.mktemp("forms"), attention_bias=True)


@pytest.fixture(scope="module")
def forms(source: Path) -> dict[str, Path]:
    """The model in each form."""
    result = {}
    for name, write in FORMS.items():
        result[name] = source.parent / re.sub(r"\W+", "-", name)
        write(source, result[name])
    return result


def assert_holds(directory: Path, source: Path) -> None:
    expected, checkpoint = load_file(source / "model.safetensors"), Checkpoint.open(directory)
    training = [name for name in checkpoint.names() if name.startswith(("adam", "epoch"))]
    assert sorted(checkpoint.names()) == sorted([*expected, *training])
    for name, array in expected.items():
        _, shape, bits = checkpoint.raw(name)
        assert shape == array.shape
        assert bits.flags.aligned
        assert bits.tobytes() == array.tobytes(), name


@pytest.mark.parametrize("form", FORMS)
def test_a_form_holds_the_tensors_of_hugging_face(
    forms: dict[str, Path], source: Path, form: str
) -> None:
    assert_holds(forms[form], source)


@pytest.mark.parametrize("form", ["mcore", "mcore_fused"])
def test_mcore_has_norms_of_heads_and_experts(tmp_path: Path, form: str) -> None:
    source = checkpoints.build("qwen3-moe", tmp_path)
    getattr(mindspore_forms, form)(source, tmp_path / "form")
    assert_holds(tmp_path / "form", source)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("form", FORMS)
def test_a_form_answers_as_transformers(
    forms: dict[str, Path], source: Path, form: str, runtime: str
) -> None:
    if runtime == "openvino":
        pytest.importorskip("openvino")
    config = EngineConfig(dtype="f32", kv_cache_dtype="f32", kv_cache_memory=2**22)
    runner = open_runner(forms[form], runtime, config)
    prompt = checkpoints.prompts(1)[0]
    row = Row(prompt, 0, list(range(-(-len(prompt) // runner.block_size))), len(prompt))
    expected = checkpoints.logits(source, prompt)
    np.testing.assert_allclose(runner.run(Step((row,))), expected, atol=1e-3)


def test_the_table_of_the_documentation_has_the_forms_and_runtimes_tested() -> None:
    page = (Path(__file__).parents[3] / "docs/checkpoint_formats.md").read_text()
    head = "| form | " + " | ".join(f'"{runtime}"' for runtime in RUNTIMES) + " |"
    lines = page[page.index(head) :].splitlines()[2:]
    rows = lines[: lines.index("")]
    assert rows == [f"| {form} |{' equal |' * len(RUNTIMES)}" for form in FORMS]


@pytest.mark.parametrize("form", ["Checkpoint 2.0", "`predict_*.yaml` instead of config.json"])
def test_a_form_can_be_quantised(forms: dict[str, Path], tmp_path: Path, form: str) -> None:
    quantize(forms[form], tmp_path / "int8", "int8")
    checkpoint = Checkpoint.open(tmp_path / "int8")
    assert checkpoint.packed("model.layers.0.self_attn.q_proj.weight") is not None


def changed(directory: Path, target: Path, **settings: object) -> Path:
    target.mkdir()
    for path in directory.iterdir():
        (target / path.name).symlink_to(path)
    config = json.loads((directory / "config.json").read_text())
    (target / "config.json").unlink()
    (target / "config.json").write_text(json.dumps({**config, **settings}))
    return target


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"num_key_value_heads": 3}, r"w?.*linear_qkv.* has 128 rows with 64 inputs.* 3 heads"),
        (
            {"use_interleaved_weight_layout_mlp": "no"},
            "use_interleaved_weight_layout_mlp 'no', expected true or false",
        ),
    ],
)
def test_a_fused_matrix_of_another_configuration_is_refused(
    forms: dict[str, Path], tmp_path: Path, settings: dict[str, object], problem: str
) -> None:
    directory = changed(forms["MindFormers' names, fused"], tmp_path / "other", **settings)
    with pytest.raises(StartError, match=problem):
        Checkpoint.open(directory)
