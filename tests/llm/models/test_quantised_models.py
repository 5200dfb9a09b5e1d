"""Models in quantised checkpoints, against float checkpoints of the same numbers."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("openvino")
pytest.importorskip("transformers")

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.codebooks import CODEBOOKS
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.loader import open_model
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.models.layouts import convert_layout, open_converted
from mindspore_serving.llm.parallel.shards import Shard, ShardedCheckpoint
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.step import Runner
from tests.llm import checkpoints
from tests.llm.quantised_files import CASES, WIDENED, quantised
from tests.llm.stepping import all_logits, greedy, relative_error

pytestmark = pytest.mark.torch
CONFIG = EngineConfig(
    dtype="f32", max_num_seqs=4, max_num_batched_tokens=64, kv_cache_memory=4 * 2**20
)
COUNT, AFTER = 24, 40  # greedy tokens, and others behind them
MATRIX = "model.layers.1.self_attn.q_proj.weight"
EXPERTS = ("gptq", "awq", "fp8-block", "w4a16", "nf4")

# What OpenVINO is given; bf16 where the format is widened before.
TYPES = dict.fromkeys(["gptq", "gptq-channel", "gptq-act-order", "w4a16", "w4a16-act-order"], "i4")
TYPES |= dict.fromkeys([name for name in CASES if name.startswith("modelslim-w4a")], "i4")
TYPES |= dict.fromkeys([name for name in CASES if name.startswith("modelslim-w8a")], "i8")
TYPES |= {"modelslim-w8a16-groups": "u8", "golden-stick-a16w8": "u8", "golden-stick-a16w4": "u4"}
TYPES |= {"golden-stick-a8w8": "i8"}
TYPES |= dict.fromkeys(["gptq-asymmetric", "gptq-v2", "awq", "w4a16-asymmetric"], "u4")
TYPES |= dict.fromkeys(["w8a16-channel", "w8a8", "w8a8-tensor", "llm-int8"], "i8")
TYPES |= dict.fromkeys(["gptq-8bit", "w8a8-asymmetric"], "u8")
TYPES |= dict.fromkeys(["nf4", "nf4-double"], "nf4")
TYPES |= dict.fromkeys(["fp8-tensor", "fp8-channel", "fp8-block", "compressed-fp8"], "f8e4m3")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quantised")


def built(root: Path, case: str, model: str = "llama") -> tuple[Path, Path]:
    """The quantised checkpoint and that of floats."""
    if not (root / model).exists():
        checkpoints.build(model, root, **checkpoints.two_layers(model))
    target = root / f"{model}-{case}"
    if not target.exists():
        quantised(root / model, target, CASES[case])
    return target / "quantised", target / "floats"


def check(runner: Runner, floats: Path) -> None:
    """Logits of 124 tokens, and greedy tokens."""
    (prompt,) = checkpoints.prompts(1)
    try:
        (answer,) = greedy(runner, [prompt], COUNT)
        whole = [*prompt, *answer, *prompt[:AFTER]]
        found = all_logits(runner, whole)
    finally:
        runner.close()
    expected = checkpoints.logits(floats, whole)
    assert relative_error(found, expected) < 1e-5
    likeliest = expected[len(prompt) - 1 : len(prompt) - 1 + COUNT].argmax(-1)
    assert answer == tuple(likeliest.tolist())


def is_repeated(case: str) -> bool:
    """Decoded to a form that another case has; `test_quantised` compares what it stands for."""
    unlike = ("modelslim-w8a8", "modelslim-w4a8-two-levels", "golden-stick-a16w4", *WIDENED)
    return case.startswith(("modelslim", "golden-stick")) and case not in unlike


@pytest.mark.parametrize("runtime", ["openvino", "torch"])
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.long] * is_repeated(case)) for case in CASES],
)
def test_logits_and_greedy_tokens_are_those_of_the_floats(
    root: Path, case: str, runtime: str
) -> None:
    directory, floats = built(root, case)
    check(open_runner(directory, runtime, CONFIG), floats)


@pytest.mark.parametrize("runtime", ["openvino", "torch"])
@pytest.mark.parametrize("case", EXPERTS)
def test_quantised_experts_match_the_floats(root: Path, case: str, runtime: str) -> None:
    directory, floats = built(root, case, "qwen3-moe")
    check(open_runner(directory, runtime, CONFIG), floats)


@pytest.mark.parametrize("runtime", ["openvino", "torch"])
def test_gpt_oss_has_its_experts_in_mxfp4(root: Path, runtime: str) -> None:
    directory, floats = mxfp4(root)
    check(open_runner(directory, runtime, CONFIG), floats)


def mxfp4(root: Path) -> tuple[Path, Path]:
    """The files that gpt-oss has, and the floats that its experts stand for."""
    plain, other = root / "gpt-oss", root / "gpt-oss-mxfp4"
    if other.exists():
        return other, plain
    checkpoints.build("gpt-oss", root)
    stored = load_file(plain / "model.safetensors")
    floats = dict(stored)
    rng = np.random.default_rng(0)
    for name in [name for name in stored if name.endswith("experts.gate_up_proj")] + [
        name for name in stored if name.endswith("experts.down_proj")
    ]:
        count, inputs, outputs = stored.pop(name).shape
        blocks = rng.integers(0, 256, (count, outputs, inputs // 32, 16)).astype(np.uint8)
        scales = rng.integers(122, 125, (count, outputs, inputs // 32)).astype(np.uint8)
        codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(count, outputs, -1, 32)
        values = CODEBOOKS["f4e2m1"][codes] * 2.0 ** (scales[..., None].astype(np.float32) - 127)
        whole = values.reshape(count, outputs, inputs).swapaxes(1, 2).astype(np.float32)
        floats[name] = torch.from_numpy(np.ascontiguousarray(whole))
        stored[f"{name}_blocks"], stored[f"{name}_scales"] = map(torch.from_numpy, (blocks, scales))
    save_file(floats, plain / "model.safetensors", {"format": "pt"})
    shutil.copytree(plain, other)
    save_file(stored, other / "model.safetensors", {"format": "pt"})
    config = json.loads((other / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (other / "config.json").write_text(json.dumps(config))
    return other, plain


@pytest.mark.mindspore
def test_mindspore_dequantises_quantised_checkpoints(root: Path) -> None:
    directory, floats = built(root, "gptq-act-order")
    runner = open_runner(directory, "mindspore", EngineConfig(kv_cache_memory=4 * 2**20))
    (prompt,) = checkpoints.prompts(1)
    found = all_logits(runner, prompt)
    runner.close()
    assert relative_error(found, checkpoints.logits(floats, prompt)) < 1e-4


def constant_type(node: Any) -> str:
    """Of the constant that a chain of operations begins with."""
    while node.input_values():
        node = node.input_value(0).get_node()
    return str(node.get_element_type().get_type_name())


@pytest.mark.parametrize("case", CASES)
def test_openvino_keeps_integers_and_codes_as_they_are(root: Path, case: str) -> None:
    weights = OpenVINOWeights(open_converted(built(root, case)[0]), "bf16")
    assert constant_type(weights.matrix(MATRIX)) == TYPES.get(case, "bf16")
    assert weights.dequantised == ([MATRIX] if case in WIDENED else [])


def test_stacked_experts_in_mxfp4_are_integers_and_in_bf16_stay_so(root: Path) -> None:
    names = [f"model.layers.0.mlp.experts.{index}.down_proj.weight" for index in range(4)]
    weights = OpenVINOWeights(open_converted(mxfp4(root)[0]), "bf16")
    assert constant_type(weights.stacked(names)) == "i8"
    assert not weights.dequantised
    checkpoints.build("qwen3-moe", root / "half", dtype="bfloat16")
    for precision, expected in (("bf16", "bf16"), ("f32", "f32")):
        weights = OpenVINOWeights(open_converted(root / "half" / "qwen3-moe"), precision)
        assert constant_type(weights.stacked(names)) == expected


@pytest.mark.parametrize(
    ("case", "runtime", "line"),
    [
        (
            "gptq-act-order",
            "openvino",
            "weights GPTQ 4 bit, groups of 32, act-order, integers kept",
        ),
        ("gptq", "torch", "weights GPTQ 4 bit, groups of 32, widened to floats, as runtime torch"),
        ("golden-stick-a16w4", "openvino", "weights golden-stick W4A16, integers kept"),
        ("fp8-block", "openvino", "weights FP8 in blocks of 32x32, widened to floats, as runtime"),
    ],
)
def test_startup_line_tells_types_of_weights(
    root: Path, case: str, runtime: str, line: str
) -> None:
    opened = open_model(built(root, case)[0], runtime, CONFIG)
    assert isinstance(opened.engine, Engine)
    opened.engine.close()
    assert line in opened.describe()


@pytest.mark.parametrize("case", ["gptq-act-order", "fp8-block"])
def test_ranks_split_dequantised_floats(root: Path, case: str) -> None:
    quantised_part, part = (
        ShardedCheckpoint(whole, load_definition(whole.config)[0], Shard(1, 2))
        for whole in map(open_converted, built(root, case))
    )
    names = list(part.names())
    assert names
    for name in names:
        np.testing.assert_array_equal(quantised_part.f32(name), part.f32(name))


def test_matrices_that_a_layout_transposes_have_to_be_floats(root: Path) -> None:
    checkpoints.build("gpt2", root)
    config = json.loads((root / "gpt2" / "config.json").read_text())
    quantised_matrix = QuantizedTensor("GPTQ", (2, 2), np.zeros(1), lambda: np.zeros((2, 2)))
    name = "h.0.attn.c_attn.weight"
    with pytest.raises(StartError, match=f"'{name}' is GPTQ, but .* have to be transposed"):
        convert_layout(Checkpoint(root / "gpt2", config, {name: quantised_matrix}))


@pytest.mark.parametrize(
    ("model", "case"),
    [("telechat2", "awq"), ("telechat2", "gptq-act-order"), ("internlm2", "gptq")],
)
def test_fused_matrices_of_integers_are_cut_by_head(root: Path, model: str, case: str) -> None:
    directory, floats = built(root, case, model)
    floats = shutil.copytree(floats, root / f"{case}-floats" / model)  # its reference's name
    check(open_runner(directory, "openvino", CONFIG), floats)


def test_quantising_a_quantised_checkpoint_again_is_refused(root: Path) -> None:
    config = replace(CONFIG, quantization="int8")
    with pytest.raises(StartError, match="is already quantised to GPTQ 4 bit, groups of 32"):
        open_runner(built(root, "gptq")[0], "openvino", config)


def test_reordered_experts_are_dequantised_with_a_warning(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    directory, floats = built(root, "gptq-act-order", "qwen3-moe")
    check(open_runner(directory, "openvino", CONFIG), floats)
    assert "quantised matrices of quantised are dequantised to f32" in capfd.readouterr().err
