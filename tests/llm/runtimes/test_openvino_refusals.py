"""Options, configurations and checkpoints that the OpenVINO runtime refuses at the start."""

import json
import sys

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("transformers")

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor, write_safetensors
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from tests.llm import checkpoints

pytestmark = pytest.mark.torch
OPTIONS = {
    "dtype": "f32",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "kv_cache_memory": 2**20,
}
CONFIG = EngineConfig(**OPTIONS)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return checkpoints.build("llama", tmp_path_factory.mktemp("checkpoints"))


def changed(directory, tmp_path, *, config=None, tensors=None, without=()):
    """A copy with another configuration, other tensors (float32), or without some."""
    target = tmp_path / "changed"
    target.mkdir()
    old = json.loads((directory / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**old, **(config or {})}))
    checkpoint = Checkpoint.open(directory)
    all_tensors = {name: checkpoint.f32(name) for name in checkpoint.names()}
    all_tensors = {k: v for k, v in {**all_tensors, **(tensors or {})}.items() if k not in without}
    kinds = {np.dtype(np.float32): "F32", np.dtype(np.float64): "F64"}
    stored = [(n, StoredTensor(kinds[a.dtype], a.shape, a)) for n, a in all_tensors.items()]
    write_safetensors(target, stored, {})
    return target


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device": "cuda"}, "device is 'cuda', the openvino runtime accepts auto and cpu"),
        ({"block_size": 16}, "block_size is 16, the openvino runtime accepts only 32"),
        ({"dtype": "f16"}, "dtype is 'f16', the openvino runtime accepts auto, f32 and bf16"),
        ({"quantization": "int3"}, "quantization is 'int3', .* accepts none, int8 and int4"),
        ({"kv_cache_dtype": "bf16", "dtype": "f32"}, "kv_cache_dtype is 'bf16', expected auto or"),
        ({"max_model_len": 513}, "max_model_len is 513, but the model has 512 positions"),
    ],
)
def test_unsupported_option_is_refused(directory, options, text):
    with pytest.raises(StartError, match=text):
        open_runner(directory, "openvino", EngineConfig(**{**OPTIONS, **options}))


def test_a_missing_tensor_is_named(directory, tmp_path):
    name = "model.layers.2.mlp.up_proj.weight"
    with pytest.raises(StartError, match=f"has no tensor '{name}'"):
        open_runner(changed(directory, tmp_path, without=[name]), "openvino", CONFIG)


@pytest.mark.parametrize(
    ("name", "shape", "text"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (64, 63), r"\[64, 63\], expected \[\*, 64\]"),
        (
            "model.layers.0.self_attn.q_proj.weight",
            (60, 64),
            "gives 60 features, expected 4 heads of at least 16",
        ),
        ("model.layers.0.self_attn.k_proj.weight", (64, 64), "gives 64 features, expected 32"),
        ("model.layers.0.mlp.up_proj.weight", (95, 64), "gives 95 features, expected 96"),
        ("model.norm.weight", (63,), r"is \[63\], expected \[64\]"),
        ("lm_head.weight", (150, 64), "gives 150 features, expected 160: vocab_size"),
        ("lm_head.weight", (160,), r"is \[160\], expected \[\*, 64\]"),
    ],
)
def test_a_tensor_of_the_wrong_shape_is_named(directory, tmp_path, name, shape, text):
    broken = changed(directory, tmp_path, tensors={name: np.zeros(shape, np.float32)})
    with pytest.raises(StartError, match=text) as caught:
        open_runner(broken, "openvino", CONFIG)
    assert name in str(caught.value)


def test_a_matrix_of_another_type_is_named(directory, tmp_path):
    doubles = {"lm_head.weight": np.zeros((160, 64), np.float64)}
    with pytest.raises(StartError, match=r"'lm_head.weight' is F64, expected one of F32, F16"):
        open_runner(changed(directory, tmp_path, tensors=doubles), "openvino", CONFIG)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"architectures": ["NoSuchModel"]},
            "is not supported; `mindspore-serving docs architectures` lists those",
        ),
        ({"architectures": None}, "architectures None: expected a name"),
        ({"hidden_size": "64"}, "hidden_size '64', expected an int over 0"),
        ({"num_hidden_layers": 0}, "num_hidden_layers 0"),
        ({"num_key_value_heads": 3}, "a multiple of num_key_value_heads=3"),
        ({"vocab_size": None}, "has no vocab_size"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "'spiral' is unknown, expected one of"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor None, expected a number over 0"),
        ({"quantization_config": {"quant_method": "eetq"}}, "quant_method 'eetq'"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused(directory, tmp_path, config, text):
    with pytest.raises(StartError, match=text):
        open_runner(changed(directory, tmp_path, config=config), "openvino", CONFIG)


def test_a_truncated_checkpoint_is_refused(directory, tmp_path):
    target = changed(directory, tmp_path)
    path = target / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(StartError, match="truncated"):
        open_runner(target, "openvino", CONFIG)


def test_unknown_runtime_error_lists_known_runtimes(directory):
    with pytest.raises(
        StartError, match="openvino, torch, mindspore, mindir, native, combined, agents, toy"
    ):
        open_runner(directory, "tensorflow", CONFIG)


def test_a_runtime_without_its_library_says_which(monkeypatch, directory):
    monkeypatch.delitem(sys.modules, "mindspore_serving.llm.runtimes.torch.opening", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(StartError, match="runtime 'torch' needs torch, which is not installed"):
        open_runner(directory, "torch", CONFIG)
