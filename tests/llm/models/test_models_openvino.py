"""Every architecture on OpenVINO, in float32, against the reference implementation."""

import json
import shutil

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("transformers")

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from tests.llm import checkpoints
from tests.llm.stepping import all_logits, greedy, relative_error

pytestmark = pytest.mark.torch
CONFIG = EngineConfig(
    dtype="f32", max_num_seqs=4, max_num_batched_tokens=64, kv_cache_memory=4 * 2**20
)
UNCAPPED = "gemma2-uncapped"  # its attention's scores, which OpenVINO's cannot cap
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
    "partial": {"rope_type": "default", "partial_rotary_factor": 0.5},
}
COUNT = 40  # greedy tokens: over the end of a block
SHORT = 8  # of a prompt alone, in one piece
AFTER = 24  # other tokens behind them, so that 124 positions are compared
NAMES = [name for name in checkpoints.ALL if name != "gemma2"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


def built(root, name):
    if not (root / name).exists():
        checkpoints.build(name, root, **checkpoints.two_layers(name))
    return root / name


def variant(root, name, new, **changes):
    """`name` with another configuration, as a directory `new`."""
    target = root / new
    if not target.exists():
        shutil.copytree(built(root, name), target)
        config = json.loads((target / "config.json").read_text())
        (target / "config.json").write_text(json.dumps({**config, **changes}))
    return target


def directory_of(root, name):
    if name == UNCAPPED:
        return variant(root, "gemma2", UNCAPPED, attn_logit_softcapping=None)
    return built(root, name)


@pytest.mark.parametrize("name", [*NAMES, UNCAPPED])
def test_logits_and_greedy_tokens_are_the_references(root, name):
    directory = directory_of(root, name)
    runner = open_runner(directory, "openvino", CONFIG)
    prompts = checkpoints.prompts(3)
    answers = greedy(runner, prompts, COUNT, chunk=17, arrivals=[0, 2, 7])  # prompts amid decoding
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer == checkpoints.likeliest(directory, prompt, answer)
    assert len({token for answer in answers for token in answer}) > 20  # no model that repeats one
    assert greedy(runner, prompts[:1], SHORT) == [answers[0][:SHORT]]
    whole = [*prompts[0], *answers[0], *prompts[0][:AFTER]]
    reference = checkpoints.logits(directory, whole)
    assert relative_error(all_logits(runner, whole), reference) < 1e-4
    runner.close()


@pytest.mark.parametrize("kind", SCALINGS)
def test_scaled_rotary_positions_are_the_references(root, kind):
    parameters = {"rope_theta": 10000.0, **SCALINGS[kind]}
    directory = variant(root, "llama", f"llama-{kind}", rope_parameters=parameters)
    if kind == "partial":
        directory = variant(root, "phi3", f"phi3-{kind}", rope_parameters=parameters)
    runner = open_runner(directory, "openvino", CONFIG)
    tokens = checkpoints.prompts(1, longest=100)[0]
    reference = checkpoints.logits(directory, tokens)
    assert relative_error(all_logits(runner, tokens), reference) < 1e-4


def test_window_hides_earlier_tokens(root):
    """Without the window the same tokens give something else, so it is not without effect."""
    tokens = checkpoints.prompts(1)[0]
    windowed = open_runner(built(root, "mistral"), "openvino", CONFIG)
    full = variant(root, "mistral", "mistral-full", sliding_window=None)
    difference = relative_error(
        all_logits(open_runner(full, "openvino", CONFIG), tokens), all_logits(windowed, tokens)
    )
    assert difference > 0.01


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3-moe"])
def test_half_precision_checkpoints_compute_in_float32(tmp_path, name, stored):
    directory = checkpoints.build(name, tmp_path, dtype=stored)
    tokens = checkpoints.prompts(1)[0]
    runner = open_runner(directory, "openvino", CONFIG)
    reference = checkpoints.logits(directory, tokens)
    assert relative_error(all_logits(runner, tokens), reference) < 1e-4


def test_sharded_checkpoints_give_the_same_logits(root, tmp_path):
    tokens = checkpoints.prompts(1)[0]
    sharded = checkpoints.build("qwen2", tmp_path, shards=3, num_hidden_layers=2)
    assert len(list(sharded.glob("*.safetensors"))) > 1
    one, many = (
        all_logits(open_runner(directory, "openvino", CONFIG), tokens)
        for directory in (built(root, "qwen2"), sharded)
    )
    np.testing.assert_array_equal(one, many)


def test_softcapped_attention_is_refused_naming_other_runtimes(root):
    with pytest.raises(StartError, match="soft-capped scores; use the torch runtime"):
        open_runner(built(root, "gemma2"), "openvino", CONFIG)


@pytest.mark.parametrize(
    ("name", "count"),
    [("mixtral", 6), ("glm4-moe", 3), ("deepseek-v2", 3), ("gpt-oss", 6), ("llama4", 3),
     ("nemotron-h-moe", 4)],
)  # fmt: skip
def test_experts_that_are_not_chosen_are_not_computed(root, name, count):
    """The plugin recognises how the mixture is written; otherwise it would be dense."""
    from mindspore_serving.llm.runtimes.openvino import opening as openvino

    runner = openvino.open_runner(built(root, name), CONFIG)
    nodes = runner._requests[0].get_compiled_model().get_runtime_model().get_ops()
    kinds = [node.get_rt_info()["layerType"].astype(str) for node in nodes]
    assert kinds.count("GatherMatmul") == count
