"""The benchmark of the torch runtime: its parts, with a tiny model on a CPU."""

import sys

import pytest

pytest.importorskip("torch")

import torch

from benchmarks import llm_cuda

pytestmark = pytest.mark.torch


def test_benchmark_measures_a_tiny_model() -> None:
    options = llm_cuda.parsed(["--batches", "1,3", "--context", "20", "--tokens", "8"])
    torch.set_num_threads(1)
    one, three = llm_cuda.measure(llm_cuda.TINY, "cpu", options)
    assert (one["batch"], three["batch"]) == (1, 3)
    for row in (one, three):
        assert 0 < row["model_ms"] <= row["step_ms"]
        assert row["tokens_per_second"] == pytest.approx(1000 * row["batch"] / row["step_ms"])
    assert one["share_of_bandwidth"] > 0
    assert "share_of_bandwidth" not in three


def test_bytes_of_a_step_are_those_of_the_shape() -> None:
    """Layers of 128 x (128 + 64 + 64 + 128) + 3 x 128 x 256 with two norms, one more norm, and
    the output matrix; two bytes each."""
    spec, _ = llm_cuda.load_definition(llm_cuda.TINY)
    weights = llm_cuda.RandomWeights(spec, "cpu")
    assert weights.has("model.layers.1.mlp.up_proj.weight")
    assert not weights.has("model.layers.1.self_attn.q_proj.bias")
    below = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    below += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    below += ("input_layernorm", "post_attention_layernorm")
    names = [f"model.layers.{i}.{name}" for i in range(2) for name in below]
    for name in (*names, "model.norm", "lm_head", "model.embed_tokens"):
        assert weights[f"{name}.weight"] is weights[f"{name}.weight"]
    layer = 128 * (128 + 64 + 64 + 128) + 3 * 128 * 256 + 2 * 128
    assert weights.bytes_of_a_step() == 2 * (2 * layer + 128 + 512 * 128)


def test_benchmark_without_a_device_prints_a_single_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["llm_cuda"])
    with pytest.raises(SystemExit, match="^no CUDA device here: this benchmark needs one"):
        llm_cuda.main()
