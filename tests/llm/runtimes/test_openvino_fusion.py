"""Dense blocks in the pattern that the CPU plugin fuses, and their fusion with AMX."""

import mmap

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("transformers")

import openvino
from safetensors.torch import load_file, save_file

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.models.layouts import open_converted
from mindspore_serving.llm.parallel.part import RankPart
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.openvino import opening
from mindspore_serving.llm.runtimes.openvino.fusion import (
    fusible_blocks,
    num_fused,
    plugin_fuses_mlp,
    to_f16,
)
from mindspore_serving.llm.runtimes.openvino.ops import OpenVINOOps
from mindspore_serving.llm.runtimes.openvino.options import BY_ROWS, options_from
from mindspore_serving.llm.runtimes.openvino.runner import OpenVINORunner
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.runtimes.pages import release_pages
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.stepping import all_logits, relative_error

pytestmark = pytest.mark.torch
OPTIONS = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "kv_cache_memory": 2**20}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(checkpoints.SIZES, "intermediate_size", 128)
        return checkpoints.build("llama", tmp_path_factory.mktemp("fusion"), dtype="bfloat16")


def graph(directory, *, bits=None, adapts=False, precision="bf16"):
    """The model that is built, and what its constants refer to."""
    checkpoint = open_converted(directory)
    spec, decoder = load_definition(checkpoint.config)
    weights = OpenVINOWeights(checkpoint, precision, bits)
    ops = OpenVINOOps(weights, adapts=adapts)
    return ops.model(decoder(ops, spec, ops.inputs), spec.vocab_size), weights


@pytest.mark.parametrize(("bits", "kind"), [(None, "bf16"), (8, "i8")])
def test_dense_blocks_have_the_fused_pattern(directory, bits, kind):
    model, _weights = graph(directory, bits=bits)
    blocks = fusible_blocks(model)
    kinds = {each.get_element_type() for block in blocks for each in block.constants}
    assert len(blocks) == checkpoints.LAYERS
    assert kinds == {getattr(openvino.Type, kind)}
    assert {block.is_int8 for block in blocks} == {bits == 8}


@pytest.mark.parametrize("options", [{"bits": 4}, {"adapts": True}])
def test_four_bits_and_inputs_for_adapters_keep_products_apart(directory, options):
    model, _weights = graph(directory, **options)
    assert fusible_blocks(model) == []


def test_int8_blocks_fuse_only_in_multiples_of_64(tmp_path):
    path = checkpoints.build("llama", tmp_path, dtype="bfloat16")  # 64 times 96
    assert len(fusible_blocks(graph(path)[0])) == checkpoints.LAYERS
    assert fusible_blocks(graph(path, bits=8)[0]) == []


@pytest.mark.parametrize("name", ["gemma", "granite"])
def test_gelu_and_other_architectures_have_the_fused_pattern(tmp_path, name):
    path = checkpoints.build(name, tmp_path, dtype="bfloat16")
    spec, _decoder = load_definition(open_converted(path).config)
    assert len(fusible_blocks(graph(path)[0])) == spec.num_layers


def test_weights_are_converted_to_f16_and_released(directory):
    model, _weights = graph(directory)
    before = [
        each.get_tensor_view().data.view(np.uint16) for each in fusible_blocks(model)[0].constants
    ]
    arrays = to_f16(fusible_blocks(model))
    made = {each.get_element_type() for block in fusible_blocks(model) for each in block.constants}
    assert made == {openvino.Type.f16}
    assert len(arrays) == 3 * checkpoints.LAYERS
    for array, bits in zip(arrays, before, strict=False):
        wide = (bits.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(array, wide.astype(np.float16))
        assert isinstance(array.base, mmap.mmap)
    release_pages(arrays)
    assert not any(array.any() for array in arrays)
    assert to_f16(fusible_blocks(model)) == []


def test_a_weight_beyond_the_range_of_float16_is_refused_by_name(tmp_path):
    path = checkpoints.build("llama", tmp_path, dtype="bfloat16")
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = 70_000.0
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    model, _weights = graph(path)
    with pytest.raises(StartError, match=r"layers\.1\.mlp\.up_proj.* beyond 65504.* use dtype f32"):
        to_f16(fusible_blocks(model))


@pytest.mark.skipif(not plugin_fuses_mlp(), reason="the plugin fuses nothing without AMX")
@pytest.mark.parametrize(
    ("quantization", "bound"), [(None, 0.05), ("int8", 0.1)], ids=["bf16", "int8"]
)
def test_amx_fuses_every_block_with_close_logits(directory, monkeypatch, quantization, bound):
    seen = []

    def compiled(model, properties):
        seen.append((openvino.Core().compile_model(model, "CPU", properties), properties))
        return seen[0][0]

    monkeypatch.setattr(opening, "compile_graph", compiled)
    config = EngineConfig(**OPTIONS, dtype="bf16", quantization=quantization)
    runner = open_runner(directory, "openvino", config)
    (graph, properties), *_ = seen
    assert num_fused(graph) == checkpoints.LAYERS
    assert properties.get("DYNAMIC_QUANTIZATION_GROUP_SIZE") == (BY_ROWS if quantization else None)
    for prompt in checkpoints.prompts(3):
        wanted = checkpoints.logits(directory, prompt)
        assert relative_error(all_logits(runner, prompt), wanted) < bound


def test_embeddings_of_a_bfloat16_graph_are_float32(directory):
    """Run in f32, so that any processor can."""
    model, weights = graph(directory)
    properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    compiled = openvino.Core().compile_model(model, "CPU", properties)
    checkpoint = open_converted(directory)
    part = RankPart(*load_definition(checkpoint.config), checkpoint)
    runner = OpenVINORunner(compiled, part, EngineConfig(**OPTIONS), weights)
    exact = open_runner(directory, "openvino", EngineConfig(**OPTIONS, dtype="f32"))
    step = Step((Row(checkpoints.prompts(1, longest=40)[0], 0, [0, 1], 40),))
    states = np.array(runner.embed(step))
    assert states.dtype == np.float32
    assert relative_error(states, np.array(exact.embed(step))) < 0.01


@pytest.mark.parametrize(
    ("group", "options", "size"),
    [(128, {}, "128"), (128, {"by_rows": True}, BY_ROWS), (64, {"is_exact": True}, "0")],
)
def test_inputs_of_integers_are_rounded_by_groups_by_rows_or_not(group, options, size, monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    found = options_from(EngineConfig(), ["FP32"]).properties(group, **options)
    assert found["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == size


def test_logits_are_computed_for_requested_rows_only(directory):
    model, _weights = graph(directory)
    waiting, kinds = [model.output("logits").get_node()], []
    while waiting:
        node = waiting.pop()
        sources = [value.get_node() for value in node.input_values()]
        if "rows" not in [source.get_friendly_name() for source in sources]:  # it chooses them
            kinds.append(node.get_type_name())
            waiting += sources
    assert kinds.count("MatMul") == 1
    assert "Parameter" not in kinds
