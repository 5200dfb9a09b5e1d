"""Quantised checkpoints: the files, and that the runtime computes with what is stored."""

import json
import re
import shutil
from functools import cache

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("transformers")

from mindspore_serving.errors import StartError
from mindspore_serving.llm import quantize as converter
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor, write_safetensors
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.quantize import Rounding, main, quantize
from mindspore_serving.llm.runtimes.openvino.opening import open_runner
from mindspore_serving.llm.runtimes.openvino.options import options_from
from tests.llm import checkpoints
from tests.llm.stepping import all_logits, relative_error

pytestmark = pytest.mark.torch
OPTIONS = {
    "dtype": "f32",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "kv_cache_memory": 2**22,
}
ROUNDED_BY = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
EXACT = {ROUNDED_BY: 0}  # floats times integers, no rounding of activations
NAMES = ["llama", "llama3-tied", "internlm2", "gpt2", "gemma3", "mixtral", "qwen3-moe"]
NAMES += ["gpt-neox", "cohere-normed", "glm4-moe"]
INT8 = ["llama", "internlm2", "gpt2", "mixtral"]  # the others are shown with int4


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


def built(root, name):
    """The checkpoint, of two layers where its number can be set; built once."""
    if not (root / name).exists():
        mixed = {"layer_types": checkpoints.MIXED_LAYERS[:2]} if name == "gemma3" else {}
        settings = {} if name in {"gpt2", "internlm2"} else {"num_hidden_layers": 2, **mixed}
        checkpoints.build(name, root, **settings)
    return root / name


def dequantised(directory, target):
    """The same model in float32, its weights multiplied out by numpy."""
    checkpoint = Checkpoint.open(directory)
    config = {k: v for k, v in checkpoint.config.items() if k != "quantization_config"}
    target.mkdir()
    (target / "config.json").write_text(json.dumps(config))
    names = [name for name in checkpoint.names() if not name.endswith((".scale", ".zero"))]
    write_safetensors(target, stored({name: checkpoint.f32(name) for name in names}), {})
    return target


def stored(arrays, dtype="F32"):
    return [(name, StoredTensor(dtype, array.shape, array)) for name, array in arrays.items()]


def logits(directory, properties=None, **options):
    runner = open_runner(directory, EngineConfig(**OPTIONS, **options), properties=properties)
    result = all_logits(runner, checkpoints.prompts(1)[0])
    runner.close()
    return result


@cache
def logits_of(source):
    return logits(source)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, marks=[pytest.mark.long] * (mode == "int8" and name not in INT8))
        for name in NAMES
        for mode in ("int8", "int4")
    ],
)
def test_the_runtime_computes_with_the_weights_that_are_stored(root, tmp_path, name, mode):
    quantize(built(root, name), tmp_path / "q", mode)
    got = logits(tmp_path / "q", EXACT)
    wanted = logits(dequantised(tmp_path / "q", tmp_path / "floats"))
    assert relative_error(got, wanted) < 1e-5
    assert relative_error(got, logits_of(built(root, name))) > 1e-3  # it is quantised


@pytest.mark.parametrize("group", [32, 128])
def test_zeros_and_smaller_groups_are_computed_as_they_are_stored(root, tmp_path, group):
    quantize(built(root, "llama"), tmp_path / "q", "int4", rounding=Rounding(group, "yes"))
    checkpoint = Checkpoint.open(tmp_path / "q")
    assert checkpoint.packed("model.layers.0.mlp.down_proj.weight").zeros is not None
    got = logits(tmp_path / "q", EXACT)
    assert relative_error(got, logits(dequantised(tmp_path / "q", tmp_path / "floats"))) < 1e-5


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_rounding_activations_as_well_stays_close(tmp_path, mode):
    """What serving does, on matrices wide enough for the integer kernels, where there are any."""
    wide = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    directory = random_llama(tmp_path / "wide", **wide)
    quantize(directory, tmp_path / "q", mode)
    exact, served = logits(tmp_path / "q", EXACT), logits(tmp_path / "q")
    rounds = options_from(EngineConfig(), ()).properties(32)[ROUNDED_BY] != "0"
    assert 0 <= relative_error(served, exact) < 0.1
    assert (relative_error(served, exact) > 0) == rounds


def random_llama(target, **sizes):
    transformers = pytest.importorskip("transformers")
    import torch

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**checkpoints.SIZES, **sizes})
    transformers.LlamaForCausalLM(config).save_pretrained(target)
    return target


def test_quantising_while_loading_gives_the_same_weights_and_a_warning(root, tmp_path, capsys):
    quantize(built(root, "llama"), tmp_path / "q", "int4")
    offline = logits(tmp_path / "q", EXACT)
    loading = logits(built(root, "llama"), EXACT, quantization="int4")
    np.testing.assert_array_equal(loading, offline)
    assert "memory for both" in capsys.readouterr().err


def test_the_target_has_the_files_of_the_source(root, tmp_path):
    source = shutil.copytree(built(root, "llama3-tied"), tmp_path / "source")
    (source / "tokenizer.json").write_text("{}")
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    quantize(source, tmp_path / "q", "int8")
    files = {path.name for path in (tmp_path / "q").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files
    assert "pytorch_model.bin" not in files
    config = json.loads((tmp_path / "q" / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "mindspore_serving"
    assert config["tie_word_embeddings"] is False
    checkpoint = Checkpoint.open(tmp_path / "q")
    dtypes = {name: checkpoint.raw(name)[0] for name in checkpoint.names()}
    assert dtypes["model.embed_tokens.weight"] == "F32"  # looked up, not multiplied
    assert dtypes["lm_head.weight"] == "I8"  # of its own now
    assert dtypes["model.layers.0.mlp.up_proj.weight"] == "I8"
    assert dtypes["model.layers.0.mlp.up_proj.weight.scale"] == "F16"
    assert dtypes["model.norm.weight"] == "F32"
    table = checkpoint.f32("model.embed_tokens.weight")
    np.testing.assert_allclose(checkpoint.f32("lm_head.weight"), table, atol=0.02)


def test_routers_keep_their_floats(root, tmp_path):
    quantize(built(root, "qwen3-moe"), tmp_path / "q", "int8")
    checkpoint = Checkpoint.open(tmp_path / "q")
    assert checkpoint.raw("model.layers.0.mlp.gate.weight")[0] == "F32"
    assert checkpoint.raw("model.layers.0.mlp.experts.0.up_proj.weight")[0] == "I8"


def test_int4_files_are_an_eighth_of_float32(root, tmp_path):
    quantize(built(root, "llama"), tmp_path / "q", "int4")
    name = "model.layers.0.mlp.up_proj.weight"
    checkpoint = Checkpoint.open(tmp_path / "q")
    assert checkpoint.raw(name)[1] == (96, 32)
    assert checkpoint.shape(name) == (96, 64)


@pytest.mark.parametrize("name", NAMES)
def test_float16_computes_the_logits_of_the_source(root, tmp_path, name):
    source = built(root, name)
    quantize(source, tmp_path / "half", "float16")
    got = logits(tmp_path / "half")
    assert relative_error(got, logits(dequantised(tmp_path / "half", tmp_path / "floats"))) < 1e-5
    assert relative_error(got, logits_of(source)) < 1e-2  # which is float32
    config = json.loads((tmp_path / "half" / "config.json").read_text())
    assert {config.get("dtype"), config.get("torch_dtype")} <= {"float16", None}
    assert "quantization_config" not in config


def test_float16_has_every_bit_of_bfloat16_but_for_the_smallest_numbers(root, tmp_path):
    source, target = shutil.copytree(built(root, "llama3-tied"), tmp_path / "bf16"), tmp_path / "h"
    checkpoint = Checkpoint.open(source)
    random = np.random.default_rng(0)
    floats = {}
    for name in checkpoint.names():
        spread = 2.0 ** random.uniform(-30, 15, checkpoint.shape(name))
        bits = (random.choice([-1, 1], spread.shape) * spread).astype(np.float32).view(np.uint32)
        floats[name] = (bits >> 16).astype(np.uint16)
    write_safetensors(source, stored(floats, "BF16"), {})
    quantize(source, target, "float16")
    before, after = Checkpoint.open(source), Checkpoint.open(target)
    assert set(before.names()) == set(after.names())  # what was tied is tied
    for name in before.names():
        wanted, got = before.f32(name), after.f32(name)
        assert after.raw(name)[0] == ("F16" if wanted.ndim == 2 else "BF16")
        is_small = np.abs(wanted) < 2.0**-17
        np.testing.assert_array_equal(got[~is_small], wanted[~is_small])
        np.testing.assert_allclose(got[is_small], wanted[is_small], rtol=0, atol=2.0**-25)


def test_numbers_too_large_for_float16_are_named(root, tmp_path):
    source = shutil.copytree(built(root, "llama"), tmp_path / "large")
    checkpoint = Checkpoint.open(source)
    floats = {name: checkpoint.f32(name).copy() for name in checkpoint.names()}
    floats["model.layers.0.mlp.up_proj.weight"][3, 4] = -70000.0
    write_safetensors(source, stored(floats), {})
    with pytest.raises(StartError, match=r"up_proj.weight' has numbers up to 70000, but float16"):
        quantize(source, tmp_path / "half", "float16")
    assert not (tmp_path / "half").exists()


def test_checkpoints_that_cannot_be_quantised_are_refused(root, tmp_path):
    source = built(root, "llama")
    with pytest.raises(StartError, match="mode is 'int3', expected one of int8, int4, float16"):
        quantize(source, tmp_path / "q", "int3")
    quantize(source, tmp_path / "q", "int8")
    with pytest.raises(StartError, match="exists"):
        quantize(source, tmp_path / "q", "int8")
    with pytest.raises(StartError, match="is quantised already"):
        quantize(tmp_path / "q", tmp_path / "again", "int4")
    with pytest.raises(StartError, match="is 'int4', but .* is already quantised to int8"):
        logits(tmp_path / "q", quantization="int4")


def test_a_conversion_that_fails_leaves_nothing(root, tmp_path, monkeypatch):
    def fails(*_, **__):
        raise StartError("no more")

    monkeypatch.setattr(converter, "pack", fails)
    with pytest.raises(StartError, match="no more"):
        quantize(built(root, "llama"), tmp_path / "q", "int8")
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_converts_or_says_why_not(root, tmp_path, capsys):
    source = str(built(root, "llama"))
    assert main([source, str(tmp_path / "q"), "int8"]) == 0
    assert (tmp_path / "q" / "model.safetensors").exists()
    assert main([source, str(tmp_path / "q"), "int8"]) == 1
    assert "error: " in capsys.readouterr().err


def test_the_command_prints_target_mode_and_sizes(root, tmp_path, capsys):
    from mindspore_serving.cli import main as serving

    target = tmp_path / "q"
    assert serving(["quantize", str(built(root, "llama")), str(target), "--mode", "int4"]) == 0
    shown = capsys.readouterr().out
    said = rf"Wrote {re.escape(str(target))}: int4, \d+ MiB \(\d+ MiB before\)\n"
    assert re.fullmatch(said, shown)
