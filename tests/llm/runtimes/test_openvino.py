"""The OpenVINO runner: the cache and its blocks, what is refused, options, and its own check."""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("transformers")

import openvino

from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.parallel.part import RankPart
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.openvino import attention as openvino_attention
from mindspore_serving.llm.runtimes.openvino.ops import OpenVINOOps
from mindspore_serving.llm.runtimes.openvino.options import options_from
from mindspore_serving.llm.runtimes.openvino.processor import capabilities
from mindspore_serving.llm.runtimes.openvino.runner import OpenVINORunner, warm_up_sizes
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.stepping import all_logits, greedy, relative_error
from tests.waiting import PATIENCE

pytestmark = pytest.mark.torch
OPTIONS = {
    "dtype": "f32",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "kv_cache_memory": 2**20,
}
CONFIG = EngineConfig(**OPTIONS)
HAS_BF16 = "BF16" in capabilities()
BLOCK_BYTES = 2 * checkpoints.LAYERS * 2 * 16 * 32 * 4  # keys and values, 2 heads of 16, f32


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return checkpoints.build("llama", tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def runner(directory):
    return open_runner(directory, "openvino", CONFIG)


def test_cache_size_follows_from_memory(runner):
    assert runner.block_size == 32
    assert runner.num_blocks == 2**20 // BLOCK_BYTES
    assert runner.vocab_size == checkpoints.VOCAB
    assert runner.max_model_len == 512


def test_sequences_share_the_blocks_of_a_common_prefix(directory, runner):
    """The second starts after three shared blocks, the third after two."""
    prompt = checkpoints.prompts(1, longest=110)[0]
    wanted = checkpoints.greedy(directory, prompt, 16)
    first = [20, 3, 11, 7, 5]
    assert greedy(runner, [prompt], 16, tables=[first]) == [wanted]
    tables = [[*first[:3], 30, 31], [*first[:2], 40, 41, 42]]
    shared = greedy(runner, [prompt] * 2, 16, tables=tables, computed=[96, 64], arrivals=[0, 2])
    assert shared == [wanted, wanted]


def test_blocks_are_copied_before_the_step(directory, runner):
    """A half-filled block is copied, the copy goes on with other tokens, the original stays."""
    prompt = checkpoints.prompts(1, longest=40)[0]
    runner.run(Step((Row(prompt, 0, [0, 1], 0),)))
    other = (*prompt, 9)
    row = Row(other[40:], 40, [0, 2], 1)
    logits = np.array(runner.run(Step((row,), copies=((1, 2),))))
    assert relative_error(logits, checkpoints.logits(directory, other)[-1:]) < 1e-4
    wanted = checkpoints.greedy(directory, prompt, 8)
    token = int(checkpoints.logits(directory, prompt)[-1].argmax())
    rest = greedy(runner, [(*prompt, token)], 7, tables=[[0, 1]], computed=[40])
    assert (token, *rest[0]) == wanted


def test_copies_are_done_in_order(directory, runner):
    prompt = checkpoints.prompts(1, longest=20)[0]
    runner.run(Step((Row(prompt, 0, [0], 0),)))
    row = Row((7,), 20, [2], 1)
    logits = np.array(runner.run(Step((row,), copies=((0, 1), (1, 2)))))
    wanted = checkpoints.logits(directory, (*prompt, 7))[-1:]
    assert relative_error(logits, wanted) < 1e-4


def test_requested_logits_come_in_row_order(directory, runner):
    first, second, third = checkpoints.prompts(3, longest=40, seed=5)
    rows = (Row(first, 0, [0, 1], 3), Row(second, 0, [2, 3], 0), Row(third, 0, [4, 5], 1))
    logits = np.array(runner.run(Step(rows)))
    wanted = [checkpoints.logits(directory, first)[-3:], checkpoints.logits(directory, third)[-1:]]
    assert relative_error(logits, np.concatenate(wanted)) < 1e-4


def test_step_without_logits_returns_no_rows(runner):
    assert runner.run(Step((Row((5, 6, 7), 0, [0], 0),))).shape == (0, checkpoints.VOCAB)


def test_buffers_of_equal_size_are_reused(directory, runner):
    """Sizes repeat, so that buffers are taken again with other contents."""
    for seed in range(4):
        prompts = checkpoints.prompts(2, seed=seed, longest=30)
        for prompt in (prompts[0], prompts[0][::-1]):
            wanted = checkpoints.logits(directory, prompt)
            assert relative_error(all_logits(runner, prompt), wanted) < 1e-4


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (Row([1] * 33, 0, [0], 1), "row 1 has 1 blocks, expected at least 2"),
        (Row([1], 64, [0, 1], 1), "row 1 has 2 blocks, expected at least 3"),
        (Row([1], 0, [10_000], 1), "row 1 has blocks 10000"),
        (Row([1], 0, [-1], 1), "row 1 has blocks -1"),
        (Row([checkpoints.VOCAB], 0, [0], 1), f"token id {checkpoints.VOCAB}"),
        (Row([-1], 0, [0], 1), "token id -1"),
        (Row([1], 0, [0], 2), "row 1 requests 2 logits of 1 tokens"),
        (Row([], 0, [0], 0), "row 1 has no tokens"),
        (Row([1], -1, [0], 1), "row 1 has positions -1"),
        (Row([1], 512, list(range(17)), 1), "row 1 has positions 512..512"),
        (Row([1], 0, [0], 1, adapter=1), "row 1 has adapter 1"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_and_nothing_is_computed(directory, runner, row, text):
    prompt = checkpoints.prompts(1, longest=20)[0]
    runner.run(Step((Row(prompt, 0, [3], 0),)))
    with pytest.raises(ServingError, match=text):
        runner.run(Step((Row([9] * 20, 0, [3], 1), row)))  # would overwrite block 3
    logits = np.array(runner.run(Step((Row([7], 20, [3], 1),))))
    wanted = checkpoints.logits(directory, (*prompt, 7))[-1:]
    assert relative_error(logits, wanted) < 1e-4


@pytest.mark.parametrize("copies", [((0, 10_000),), ((-1, 0),)])
def test_a_copy_out_of_the_cache_is_refused(runner, copies):
    with pytest.raises(ServingError, match="out of the cache"):
        runner.run(Step((Row([1], 0, [0], 1),), copies=copies))


def test_an_empty_step_is_refused(runner):
    with pytest.raises(ServingError, match="no rows"):
        runner.run(Step(()))


def test_closed_runner_refuses_a_step(directory):
    runner = open_runner(directory, "openvino", CONFIG)
    runner.close()
    runner.close()
    with pytest.raises(ServingError, match="is closed"):
        runner.run(Step((Row([1], 0, [0], 1),)))


@pytest.mark.parametrize(("kind", "bound"), [("f16", 5e-3), ("u8", 0.05)])
def test_a_smaller_cache_type_holds_more_and_is_close(directory, kind, bound):
    runner = open_runner(directory, "openvino", EngineConfig(**OPTIONS, kv_cache_dtype=kind))
    assert runner.num_blocks > 2**20 // BLOCK_BYTES
    prompt = checkpoints.prompts(1)[0]
    table = [1, 0]
    runner.run(Step((Row(prompt[:40], 0, table, 0),)))
    rest = np.array(runner.run(Step((Row(prompt[40:], 40, table, 20),))))
    error = relative_error(rest, checkpoints.logits(directory, prompt)[40:])
    assert 0 < error < bound


def test_copied_blocks_of_a_quantised_cache_are_the_same(directory):
    runner = open_runner(directory, "openvino", EngineConfig(**OPTIONS, kv_cache_dtype="u8"))
    prompt = checkpoints.prompts(1, longest=20)[0]
    runner.run(Step((Row(prompt, 0, [0], 0),)))
    copied = np.array(runner.run(Step((Row([7], 20, [5], 1),), copies=((0, 5),))))
    original = np.array(runner.run(Step((Row([7], 20, [0], 1),))))
    np.testing.assert_array_equal(copied, original)


def test_a_small_cache_lowers_the_longest_sequence(directory):
    config = EngineConfig(**{**OPTIONS, "kv_cache_memory": 3 * BLOCK_BYTES + 5})
    runner = open_runner(directory, "openvino", config)
    assert (runner.num_blocks, runner.max_model_len) == (3, 96)


def test_cache_smaller_than_a_sequence_is_an_error(directory):
    config = EngineConfig(**{**OPTIONS, "kv_cache_memory": BLOCK_BYTES - 1})
    with pytest.raises(StartError, match=f"hold no block: .* takes {BLOCK_BYTES} bytes; raise"):
        open_runner(directory, "openvino", config)


def test_default_cache_is_limited_to_all_sequences(directory):
    config = EngineConfig(dtype="f32", max_num_seqs=3, max_num_batched_tokens=16)
    assert open_runner(directory, "openvino", config).num_blocks == 3 * 512 // 32


def test_an_instruction_set_without_bf16_is_respected(monkeypatch):
    for name in ("AVX512_CORE_VNNI", "AVX2"):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", name)
        assert "BF16" not in capabilities()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX")
    with_amx = capabilities()
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    assert with_amx == capabilities()


def test_single_thread_computes_in_f32():
    assert "BF16" not in capabilities(num_threads=1)


@pytest.mark.parametrize("how", ["one core", "an option"])
def test_model_runs_on_a_single_thread(directory, how):
    program = f"""
import os
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, Step
if {how!r} == "one core":
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
runner = open_runner({str(directory)!r}, "openvino", EngineConfig(
    kv_cache_memory=2**20, num_threads=None if {how!r} == "one core" else 1))
print(runner.run(Step((Row([5], 0, [0], 1),))).shape)
"""
    assert output_of(program) == f"(1, {checkpoints.VOCAB})"


def test_bf16_is_the_default_on_supporting_processors():
    assert options_from(EngineConfig(), ["FP32", "BF16"]).precision == "bf16"
    assert options_from(EngineConfig(), ["FP32", "BF16"]).cache_precision == "f16"
    assert options_from(EngineConfig(), ["FP32"]).precision == "f32"
    assert options_from(EngineConfig(), ["FP32"]).cache_precision == "f16"
    assert options_from(EngineConfig(dtype="f32"), ["FP32"]).cache_precision == "f32"
    with pytest.raises(StartError, match="this processor supports f32 only"):
        options_from(EngineConfig(dtype="bf16"), ["FP32"])


@pytest.mark.parametrize(
    ("cache", "precision"), [("auto", "bf16"), ("bf16", "bf16"), ("u8", "bf16"), ("f16", "f32"),
                             ("f32", "f32")],
)  # fmt: skip
def test_default_dtype_fits_the_cache_dtype(cache, precision):
    config = EngineConfig(kv_cache_dtype=cache)
    assert options_from(config, ["FP32", "BF16"]).precision == precision
    if cache != "bf16":
        assert options_from(config, ["FP32"]).precision == "f32"
        return
    with pytest.raises(StartError, match="kv_cache_dtype is 'bf16', expected auto or one of f32"):
        options_from(config, ["FP32"])


def test_float32_cache_makes_the_default_dtype_f32(directory):
    config = EngineConfig(kv_cache_dtype="f32", max_num_seqs=4, kv_cache_memory=2**20)
    runner = open_runner(directory, "openvino", config)
    assert runner.num_blocks == 2**20 // BLOCK_BYTES
    prompt = checkpoints.prompts(1)[0]
    assert relative_error(all_logits(runner, prompt), checkpoints.logits(directory, prompt)) < 1e-4


@pytest.mark.skipif(not HAS_BF16, reason="this processor does not compute bf16")
@pytest.mark.parametrize(("cache", "bound"), [("auto", 0.05), ("bf16", 0.05), ("u8", 0.1)])
def test_bf16_logits_are_close_to_float32(directory, cache, bound):
    config = EngineConfig(dtype="bf16", kv_cache_dtype=cache, max_num_seqs=4, kv_cache_memory=2**20)
    runner = open_runner(directory, "openvino", config)
    prompt = checkpoints.prompts(1)[0]
    error = relative_error(all_logits(runner, prompt), checkpoints.logits(directory, prompt))
    assert 1e-4 < error < bound


def test_quantised_weights_set_the_group_of_dynamic_quantisation(monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    options = options_from(EngineConfig(num_threads=2), ["FP32"])
    assert options.properties(64)["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == "64"
    assert "DYNAMIC_QUANTIZATION_GROUP_SIZE" not in options.properties(0)
    assert options.properties(0)["INFERENCE_NUM_THREADS"] == 2
    assert options.properties(0)["ENABLE_CPU_PINNING"] is False


def test_integers_with_fewer_inputs_than_a_group_are_multiplied_right(directory):
    """The model has 64 features; more than four tokens take another kernel of the plugin."""
    runner = open_runner(directory, "openvino", EngineConfig(**OPTIONS, quantization="int8"))
    prompt = checkpoints.prompts(1)[0]
    assert len(prompt) > 4
    assert relative_error(all_logits(runner, prompt), checkpoints.logits(directory, prompt)) < 0.2


def test_bfloat16_matrices_are_multiplied_without_a_float32_copy(tmp_path):
    """The graph of dtype bf16, run in f32 so that any processor can: products alone are rounded."""
    directory = checkpoints.build("llama", tmp_path, dtype="bfloat16")
    checkpoint = Checkpoint.open(directory)
    spec, decoder = load_definition(checkpoint.config)
    weights = OpenVINOWeights(checkpoint, "bf16")
    ops = OpenVINOOps(weights)
    model = ops.model(decoder(ops, spec, ops.inputs), spec.vocab_size)
    name = "model.layers.0.self_attn.q_proj.weight"
    stored = weights.matrix(name).input_value(0).get_node()
    assert stored.get_element_type() == openvino.Type.bf16
    mapped = checkpoint.raw(name)[2]
    assert any(np.shares_memory(kept, mapped) for kept in weights.constants.kept)
    properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    compiled = openvino.Core().compile_model(model, "CPU", properties)
    runner = OpenVINORunner(compiled, RankPart(spec, decoder, checkpoint), CONFIG, weights)
    prompt = checkpoints.prompts(1)[0]
    assert relative_error(all_logits(runner, prompt), checkpoints.logits(directory, prompt)) < 0.05


def test_sizes_that_delay_a_start_the_least_are_warmed_up_first():
    config = EngineConfig(max_num_seqs=6, max_num_batched_tokens=100)
    assert warm_up_sizes(config, 512) == [
        (1, 1), (1, 16), (1, 64), (2, 1), (4, 1), (1, 100), (3, 1), (5, 1), (6, 1),
    ]  # fmt: skip
    assert warm_up_sizes(config, 512, packs_again=True)[:3] == [(1, 1), (1, 100), (1, 16)]
    assert (1, 40) in warm_up_sizes(config, 40)


@pytest.fixture
def unchecked():
    openvino_attention.check_paged_attention.cache_clear()
    yield
    openvino_attention.check_paged_attention.cache_clear()


def test_the_paged_attention_of_this_openvino_is_exact():
    assert openvino_attention.relative_error() < 1e-6


@pytest.mark.usefixtures("unchecked")
def test_changed_order_of_attention_inputs_is_detected(monkeypatch, directory):
    right = openvino_attention.paged_attention

    def swapped(qkv, cache, spec, *, step):
        return right((qkv[0], qkv[2], qkv[1]), cache, spec, step=step)

    monkeypatch.setattr(openvino_attention, "paged_attention", swapped)
    with pytest.raises(StartError, match=r"openvino 2026.*is off by .* install openvino 2026\.4"):
        open_runner(directory, "openvino", CONFIG)


@pytest.mark.usefixtures("unchecked")
def test_changed_count_of_attention_inputs_is_detected(monkeypatch, directory):
    monkeypatch.setattr(openvino_attention, "_unused", list)
    with pytest.raises(StartError, match=r"openvino 2026.*is refused: .* install openvino 2026\.4"):
        open_runner(directory, "openvino", CONFIG)


def test_serving_imports_neither_torch_nor_transformers(directory):
    program = f"""
import sys
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel.part import RankPart
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, Step
runner = open_runner({str(directory)!r}, "openvino", EngineConfig(
    max_num_seqs=2, max_num_batched_tokens=16, kv_cache_memory=2**20))
assert runner.run(Step((Row([5], 0, [0], 1),))).shape == (1, {checkpoints.VOCAB})
heavy = {{"torch", "transformers", "safetensors", "mindspore", "onnxruntime", "tqdm"}}
print(sorted(heavy & set(sys.modules)))
"""
    assert output_of(program) == "[]"


def output_of(program):
    """What a process of its own prints."""
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
