"""Layers with a recurrent state of fixed size, in place of keys and values or beside them.

Short convolutions (LFM2); after one, the gated delta rule (Qwen3-Next, Qwen3.5), or the selective
scan of Mamba-2.
"""

from mindspore_serving.llm.models.layer import Layer, scaled
from mindspore_serving.llm.models.layer_state import LayerState, Mamba
from mindspore_serving.llm.models.ops import Tensor
from mindspore_serving.llm.models.state_rules import DeltaRule, Heads, SelectiveScan


def recurrence(layer: Layer, h: Tensor) -> Tensor:
    """Return the output of the layer's recurrent block, [T, H], for its normalised input `h`."""
    state = layer.spec.state
    assert state is not None
    if state.heads is None:
        out = _convolution(layer, h, state)
    elif state.mamba is None:
        out = _delta_rule(layer, h, state.heads)
    else:
        out = _mamba(layer, h, state, state.heads)
    return layer.ops.all_reduce(out)


def _convolution(layer: Layer, h: Tensor, state: LayerState) -> Tensor:
    """Convolve with gates before and after, which are computed from the same tokens (LFM2)."""
    ops, has_bias = layer.ops, state.has_bias
    before, after, x = ops.split(layer.linear(h, "conv.in_proj", has_bias), [state.channels] * 3)
    x = _convolve(layer, ops.mul(before, x), "conv.conv", has_bias)
    return layer.linear(ops.mul(after, x), "conv.out_proj", has_bias)


def _convolve(layer: Layer, x: Tensor, name: str, has_bias: bool) -> Tensor:
    bias = layer.weight(name, "bias") if has_bias else None
    return layer.ops.convolution(layer.index, x, layer.weight(name), bias)


def _delta_rule(layer: Layer, h: Tensor, heads: Heads) -> Tensor:
    ops, stem = layer.ops, "linear_attn."
    x, gate, alpha, beta = _project(layer, h, heads)
    x = ops.silu(_convolve(layer, x, f"{stem}conv1d", has_bias=False))
    q, k, v = ops.split(x, [heads.keys, heads.keys, heads.values])
    prefix = f"{layer.architecture.names.layers}.{layer.index}.{stem}"
    rule = DeltaRule(heads, a_log=f"{prefix}A_log", dt_bias=f"{prefix}dt_bias")
    out = ops.delta_rule(layer.index, (q, k, v), alpha, beta, rule)
    weight = layer.weight(f"{stem}norm")
    out = ops.head_rms_norm(out, weight, heads.value_heads, layer.spec.norm_eps)
    return layer.linear(ops.silu_mul(gate, out), f"{stem}out_proj", bias=False)


def _project(layer: Layer, h: Tensor, rule: Heads) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return queries, keys and values side by side; the output gate; alpha; beta."""
    ops, stem, heads = layer.ops, "linear_attn.in_proj_", rule.key_heads
    values_per_key = rule.value_heads // heads
    if not ops.has_weight(f"{layer.architecture.names.layers}.{layer.index}.{stem}qkvz.weight"):
        names = [stem + name for name in ("qkv", "z", "a", "b")]
        x, gate, alpha, beta = layer.linears(h, names, False)
        return x, gate, alpha, beta
    fused = layer.linear(h, f"{stem}qkvz", False)  # ordered by key head
    width = values_per_key * rule.value_dim
    q, k, v, gate = ops.split_heads(fused, heads, (rule.key_dim, rule.key_dim, width, width))
    x = ops.join_heads((q, k, v), 1, rule.features)
    beta, alpha = ops.split_heads(
        layer.linear(h, f"{stem}ba", False), heads, (values_per_key, values_per_key)
    )
    return x, gate, alpha, beta


def _mamba(layer: Layer, h: Tensor, state: LayerState, heads: Heads) -> Tensor:
    ops, stem, mamba = layer.ops, layer.architecture.names.mamba, state.mamba
    assert mamba is not None
    scales = layer.spec.scales
    h = scaled(ops, h, scales.state_input)
    projected = layer.linear(h, f"{stem}.in_proj", mamba.in_bias)
    x, gate, step = _split_projection(layer, projected, heads)
    x = ops.silu(_convolve(layer, x, f"{stem}.conv1d", state.has_bias))
    x, b, c = ops.split(x, [heads.values, heads.keys, heads.keys])
    prefix = f"{layer.architecture.names.layers}.{layer.index}.{stem}."
    scan = SelectiveScan(
        heads, mamba.limits, a_log=f"{prefix}A_log", dt_bias=f"{prefix}dt_bias", skip=f"{prefix}D"
    )
    out = ops.selective_scan(layer.index, (x, b, c), step, scan)
    out = layer.linear(
        _gate_and_normalise(layer, out, gate, mamba), f"{stem}.out_proj", mamba.out_bias
    )
    return scaled(ops, out, scales.state)


def _split_projection(
    layer: Layer, projected: Tensor, heads: Heads
) -> tuple[Tensor, Tensor, Tensor]:
    """Split the input projection: x, B and C side by side; the output gate; time steps."""
    ops, factors = layer.ops, layer.spec.scales.state_parts
    if not factors:
        sizes = [heads.values, heads.features, heads.value_heads]
        gate, x, step = ops.split(projected, sizes)
        return x, gate, step
    sizes = [heads.values, heads.values, heads.keys, heads.keys, heads.value_heads]
    parts = ops.split(projected, sizes)
    gate, x, b, c, step = (scaled(ops, *pair) for pair in zip(parts, factors, strict=True))
    return ops.join_heads((x, b, c), 1, heads.features), gate, step


def _gate_and_normalise(layer: Layer, x: Tensor, gate: Tensor, mamba: Mamba) -> Tensor:
    """Gate and normalise `x`, in the model's order."""
    ops = layer.ops
    if mamba.norms_first:
        return ops.silu_mul(gate, _group_norm(layer, x, mamba))
    return _group_norm(layer, ops.silu_mul(gate, x), mamba)


def _group_norm(layer: Layer, x: Tensor, mamba: Mamba) -> Tensor:
    if not mamba.norm_groups and not mamba.spanning_groups:
        return x
    weight, eps = layer.weight(f"{layer.architecture.names.mamba}.norm"), layer.spec.norm_eps
    if mamba.spanning_groups:
        return layer.ops.spanning_rms_norm(x, weight, mamba.spanning_groups, eps)
    return layer.ops.head_rms_norm(x, weight, mamba.norm_groups, eps)
