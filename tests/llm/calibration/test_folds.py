"""What may be scaled, by the calls of a model, and that it computes the same with any scales."""

import json

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("transformers")

from mindspore_serving.llm.calibration.folds import find_folds
from mindspore_serving.llm.calibration.scaling import ScaledFold, apply_scales
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor, write_safetensors
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.models.layouts import open_converted
from mindspore_serving.llm.models.tracing import trace
from mindspore_serving.llm.runtimes.openvino.opening import open_runner
from tests.llm import checkpoints
from tests.llm.stepping import all_logits, relative_error

pytestmark = pytest.mark.torch
EXACT = {"dtype": "f32", "kv_cache_dtype": "f32", "max_num_seqs": 1, "kv_cache_memory": 2**22}
# name -> (how many are found, in the first layer: what is scaled, by what it is given)
FOUND = {
    "llama": (12, {"q_proj": "input_layernorm", "k_proj": "input_layernorm",
                   "v_proj": "input_layernorm", "o_proj": "v_proj",
                   "gate_proj": "post_attention_layernorm",
                   "up_proj": "post_attention_layernorm", "down_proj": "up_proj"}),
    "llama-biased": (12, {"o_proj": "v_proj", "down_proj": "up_proj"}),
    "phi3": (12, {"qkv_proj": "input_layernorm", "o_proj": "qkv_proj",
                  "gate_up_proj": "post_attention_layernorm", "down_proj": "gate_up_proj"}),
    "gemma3": (12, {"gate_proj": "pre_feedforward_layernorm", "down_proj": "up_proj"}),
    "gpt2": (9, {"linear": "ln_2"}),  # what GELU gives is not scaled
    "gpt-neox": (6, {"dense": "value", "dense_h_to_4h": "post_attention_layernorm"}),
    "cohere-normed": (6, {"gate_proj": "input_layernorm", "q_proj": "input_layernorm"}),
    "olmo2": (4, {"o_proj": "v_proj", "down_proj": "up_proj"}),  # its norms are behind the blocks
    "mixtral": (6, {"o_proj": "v_proj", "q_proj": "input_layernorm"}),  # no expert
    "deepseek-v3": (9, {"q_b_proj": "q_a_layernorm", "kv_b_proj": "kv_a_layernorm"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


def built(root, name):
    return root / name if (root / name).exists() else checkpoints.build(name, root)


def folds_of(checkpoint):
    spec, decoder = load_definition(checkpoint.config)
    return find_folds(trace(spec, decoder, checkpoint.has), checkpoint.shape)


def leaf(name):
    return name.split(".")[-2]


@pytest.mark.parametrize("name", FOUND)
def test_inputs_are_scaled_where_the_architecture_allows_scaling(root, name):
    count, expected = FOUND[name]
    folds = folds_of(open_converted(built(root, name)))
    pairs = {leaf(reader): leaf(fold.source) for fold in folds for reader in fold.readers}
    assert len(folds) == count
    assert expected.items() <= pairs.items()


@pytest.mark.parametrize("name", FOUND)
def test_the_model_computes_the_same_with_any_scales(root, tmp_path, name):
    checkpoint, random = open_converted(built(root, name)), np.random.default_rng(0)
    scaled = []
    for fold in folds_of(checkpoint):
        of_channels = np.exp(random.uniform(-2, 2, fold.channels.max() + 1)).astype(np.float32)
        scaled.append(ScaledFold(fold, of_channels[fold.channels], 1.0))
    tensors = [
        (each, StoredTensor("F32", array.shape, array.astype(np.float32)))
        for each in checkpoint.names()
        for array in [apply_scales(scaled, each, checkpoint.f32(each))]
    ]
    (tmp_path / "config.json").write_text(json.dumps(checkpoint.config))
    write_safetensors(tmp_path, tensors, {})
    differ = [n for n, one in tensors if not np.array_equal(one.bits, checkpoint.f32(n))]
    assert len(differ) > len(scaled)
    assert relative_error(logits(tmp_path), logits(built(root, name))) < 2e-5


def logits(directory):
    runner = open_runner(directory, EngineConfig(**EXACT))
    found = all_logits(runner, checkpoints.prompts(1)[0])
    runner.close()
    return found
