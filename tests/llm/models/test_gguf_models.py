"""Models in GGUF files, against transformers on the same files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.pieces import open_gguf
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.parallel.shards import Shard, ShardedCheckpoint
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.openvino.opening import open_runner as open_openvino
from mindspore_serving.llm.step import Row, Runner, Step
from tests.llm import chatglm_files
from tests.llm.gguf_files import HEAD_DIM, write_model

pytestmark = pytest.mark.torch
TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, 96, 80)]
WINDOW = 24
MOE = {
    "qwen3moe.expert_count": 4,
    "qwen3moe.expert_used_count": 2,
    "qwen3moe.expert_feed_forward_length": 96,
}
GEMMA2 = {
    "gemma2.attention.sliding_window": WINDOW,
    "gemma2.attn_logit_softcapping": 15.0,
    "gemma2.final_logit_softcapping": 8.0,
}
GEMMA2_CHANGES = {"attn_logit_softcapping": 15.0, "final_logit_softcapping": 8.0}
GEMMA2_CHANGES |= {"sliding_window": WINDOW, "query_pre_attn_scalar": HEAD_DIM}
GEMMA3 = {"gemma3.attention.sliding_window": WINDOW}
GEMMA3_CHANGES = {"sliding_window": WINDOW, "query_pre_attn_scalar": HEAD_DIM}
CHATGLM = {"chatglm.rope.dimension_count": HEAD_DIM // 2}
# What the file has; and what transformers does not read of it.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}),
    "llama-tied": ("llama", {"tied": True}, {}),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {"tied": True}, {"head_dim": HEAD_DIM}),
    "qwen3moe": ("qwen3moe", {"extra": MOE}, {"moe_intermediate_size": 96, "norm_topk_prob": True}),
    "phi3": (
        "phi3",
        {"extra": {"phi3.attention.sliding_window": WINDOW}},
        {"sliding_window": WINDOW},
    ),
    "gemma2": ("gemma2", {"tied": True, "extra": GEMMA2}, GEMMA2_CHANGES),
    "gemma3": ("gemma3", {"tied": True, "extra": GEMMA3}, GEMMA3_CHANGES),
    "chatglm": ("chatglm", {"extra": CHATGLM, "packed": True}, {}),
    "chatglm-split": ("chatglm", {"extra": CHATGLM}, {}),
    "chatglm-quantised": ("chatglm", {"extra": CHATGLM, "packed": True, "kind": "Q4_1"}, {}),
}


def reference(path: Path, **changes: Any) -> np.ndarray:
    """transformers' logits of TOKENS, [80, vocab]."""
    if open_gguf(path).metadata["general.architecture"] == "chatglm":  # which it does not read
        return chatglm_files.logits_of_file(path, TOKENS)
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    for name, value in {"pad_token_id": None, **changes}.items():
        setattr(config, name, value)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = model.eval()
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    unknown = model.load_state_dict(tensors, strict=False)
    assert not unknown.unexpected_keys
    assert set(unknown.missing_keys) <= {"lm_head.weight"}  # where it is the embedding
    model.tie_weights()
    with torch.no_grad():
        return model.float()(torch.tensor([TOKENS])).logits[0].numpy()


def logits(runner: Runner, tokens: list[int]) -> np.ndarray:
    blocks = list(range(-(-len(tokens) // runner.block_size)))
    try:
        return np.array(runner.run(Step((Row(tokens, 0, blocks, len(tokens)),))))
    finally:
        runner.close()


def torch_logits(path: Path, tokens: list[int] = TOKENS) -> np.ndarray:
    return logits(open_runner(path, "torch", EngineConfig(kv_cache_memory=2**24)), tokens)


def openvino_logits(path: Path, tokens: list[int] = TOKENS) -> np.ndarray:
    config, exact = EngineConfig(kv_cache_memory=2**24, dtype="f32"), {}
    exact["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
    return logits(open_openvino(path, config, properties=exact), tokens)


def assert_equal(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-4) -> None:
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert error < tolerance, f"off by {error:.2g}"


@pytest.mark.parametrize("case", CASES)
def test_architecture_matches_transformers(case: str, tmp_path: Path) -> None:
    family, options, changes = CASES[case]
    path = write_model(tmp_path / "model.gguf", family, **options)
    expected = reference(path, **changes)
    assert_equal(torch_logits(path), expected)
    if case != "gemma2":  # OpenVINO has no attention with capped scores
        assert_equal(openvino_logits(path), expected)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_model_matches_transformers_dequantised(kind: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", kind=kind, tied=kind == "Q4_1")
    expected = reference(path)
    assert_equal(torch_logits(path), expected)
    assert_equal(openvino_logits(path), expected)


@pytest.mark.mindspore
def test_mindspore_dequantises_a_quantised_model(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", kind="Q4_1")
    found = logits(open_runner(path, "mindspore", EngineConfig(kv_cache_memory=2**24)), TOKENS)
    assert_equal(found, reference(path), 1e-3)


def test_a_mixture_of_quantised_experts_keeps_their_integers(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", "qwen3moe", kind="Q4_1", extra=MOE)
    assert_equal(openvino_logits(path), torch_logits(path))


def rope_of(path: Path, **extra: Any) -> tuple[np.ndarray, float]:
    file = write_model(path / "model.gguf", extra=extra)
    spec, _ = load_definition(Checkpoint.open(file).config)
    return np.array(spec.rope.inv_freq), spec.rope.scale


def test_linear_rope_scaling_divides_the_frequencies(tmp_path: Path) -> None:
    plain, _ = rope_of(tmp_path)
    extra = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    scaled, _ = rope_of(tmp_path, **extra)
    np.testing.assert_allclose(scaled, plain / 4)


def test_yarn_rope_scaling_sharpens_attention(tmp_path: Path) -> None:
    extra = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 128,
    }
    scaled, scale = rope_of(tmp_path, **extra)
    plain, _ = rope_of(tmp_path)
    assert scaled[0] == pytest.approx(plain[0])
    assert scaled[-1] == pytest.approx(plain[-1] / 4)
    assert scale == pytest.approx(0.1 * np.log(4) + 1)


def test_rope_factors_in_a_tensor_divide_the_frequencies(tmp_path: Path) -> None:
    """As Llama 3 has them."""
    plain, _ = rope_of(tmp_path)
    factors = np.arange(1, HEAD_DIM // 2 + 1, dtype=np.float32)
    path = write_model(tmp_path / "factors.gguf", tensors={"rope_freqs.weight": factors})
    spec, _ = load_definition(Checkpoint.open(path).config)
    np.testing.assert_allclose(spec.rope.inv_freq, plain / factors)
    assert spec.rope.scale == 1.0


def test_unknown_gguf_architecture_names_similar(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", "qwen36")
    with pytest.raises(StartError, match=r"'qwen36'.* did you mean .*qwen3"):
        Checkpoint.open(path)


@pytest.mark.parametrize("key", ["attention.key_length", "rope.dimension_count"])
@pytest.mark.parametrize("value", ["many", 0.5, [8, 8, 16]])
def test_sizes_of_heads_that_are_no_numbers_are_refused(
    key: str, value: object, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "model.gguf", extra={f"llama.{key}": value})
    with pytest.raises(StartError, match=r"llama\.(rope.dimension_count|attention.key_length)"):
        Checkpoint.open(path)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({}, r"sliding_window_pattern \[None, None, None\], expected a number for each of 3"),
        ({"block_count": "many"}, "expected a number for each of many"),
        ({"attention.sliding_window_pattern": [True]}, r"\[.*\], expected a number for each of 3"),
        (
            {"attention.sliding_window_pattern": [True, False, False],
             "attention.head_count_kv": [2, 2, 1]},
            r"has gemma4\.attention\.head_count_kv \[2, 2, 1\]",
        ),
    ],
)  # fmt: skip
def test_a_gemma_4_with_other_kinds_of_layers_is_refused(
    extra: dict[str, Any], says: str, tmp_path: Path
) -> None:
    values = {f"gemma4.{key}": value for key, value in extra.items()}
    path = write_model(tmp_path / "model.gguf", "gemma4", extra=values)
    with pytest.raises(StartError, match=says):
        Checkpoint.open(path)


def test_layers_without_keys_are_refused_where_there_are_no_states(tmp_path: Path) -> None:
    extra = {"llama.attention.head_count_kv": [2, 0, 2]}
    path = write_model(tmp_path / "model.gguf", extra=extra)
    with pytest.raises(StartError, match=r"different llama\.attention\.head_count_kv"):
        Checkpoint.open(path)


def test_a_tensor_that_the_architecture_does_not_have_is_refused(tmp_path: Path) -> None:
    tensors = {"blk.0.attn_sinks.weight": np.zeros(4, np.float32)}
    path = write_model(tmp_path / "model.gguf", tensors=tensors)
    with pytest.raises(StartError, match=r"blk\.0\.attn_sinks\.weight"):
        Checkpoint.open(path)


def test_quantising_a_quantised_file_again_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", kind="Q8_0")
    with pytest.raises(StartError, match="already quantised to Q8_0"):
        open_openvino(path, EngineConfig(quantization="int4"))


def test_a_quantised_file_is_cut_over_ranks_as_its_floats_are(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write_model(tmp_path / "model.gguf", kind="Q8_0"))
    spec, _ = load_definition(checkpoint.config)
    name = "model.layers.0.mlp.down_proj.weight"
    own = ShardedCheckpoint(checkpoint, spec, Shard(1, 2)).f32(name)
    np.testing.assert_array_equal(own, checkpoint.f32(name)[:, spec.intermediate_size // 2 :])
