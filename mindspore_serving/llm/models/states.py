"""Layers that remember a text in a state of fixed size, in place of keys and values: short
convolutions (LFM2), and the gated delta rule behind one (Qwen3-Next, Qwen3.5).
"""

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.layer import SILU, Layer
from mindspore_serving.llm.models.ops import DeltaRule, Tensor
from mindspore_serving.llm.models.spec_parts import LayerState


def recurrence(layer: Layer, h: Tensor, state: LayerState) -> Tensor:
    """What the block in place of attention gives.  Raises StartError: an unknown activation."""
    return _delta_rule(layer, h, state) if state.value_heads else _convolution(layer, h, state)


def _convolution(layer: Layer, h: Tensor, state: LayerState) -> Tensor:
    """Gates, which are computed from the same tokens, before and behind the convolution."""
    ops, has_bias = layer.ops, state.has_bias
    before, behind, x = ops.split(layer.linear(h, "conv.in_proj", has_bias), [state.channels] * 3)
    bias = layer.weight("conv.conv", "bias") if has_bias else None
    x = ops.convolution(layer.index, ops.mul(before, x), layer.weight("conv.conv"), bias)
    return layer.linear(ops.mul(behind, x), "conv.out_proj", has_bias)


def _delta_rule(layer: Layer, h: Tensor, state: LayerState) -> Tensor:
    ops, stem = layer.ops, "linear_attn."
    if layer.spec.activation not in SILU:
        raise StartError(
            f"layers of linear attention have the activation {layer.spec.activation!r}, expected "
            "silu"
        )
    x, gate, alpha, beta = _projected(layer, h, state)
    x = ops.silu(ops.convolution(layer.index, x, layer.weight(f"{stem}conv1d")))
    keys, values = state.key_heads * state.key_dim, state.value_heads * state.value_dim
    q, k, v = ops.split(x, [keys, keys, values])
    prefix = f"{layer.form.names.layers}.{layer.index}.{stem}"
    rule = DeltaRule(
        key_heads=state.key_heads,
        value_heads=state.value_heads,
        key_dim=state.key_dim,
        value_dim=state.value_dim,
        a_log=f"{prefix}A_log",
        dt_bias=f"{prefix}dt_bias",
    )
    out = ops.delta_rule(layer.index, (q, k, v), alpha, beta, rule)
    weight = layer.weight(f"{stem}norm")
    out = ops.head_rms_norm(out, weight, state.value_heads, layer.spec.norm_eps)
    return layer.linear(ops.silu_mul(gate, out), f"{stem}out_proj", bias=False)


def _projected(layer: Layer, h: Tensor, state: LayerState) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values side by side; the gate of the result; alpha; beta."""
    ops, stem, heads = layer.ops, "linear_attn.in_proj_", state.key_heads
    each = state.value_heads // heads
    if not ops.has_weight(f"{layer.form.names.layers}.{layer.index}.{stem}qkvz.weight"):
        x, gate, alpha, beta = (
            layer.linear(h, stem + name, False) for name in ("qkv", "z", "a", "b")
        )
        return x, gate, alpha, beta
    both = layer.linear(h, f"{stem}qkvz", False)  # of each head of keys, one after another
    width = each * state.value_dim
    q, k, v, gate = ops.split_heads(both, heads, (state.key_dim, state.key_dim, width, width))
    x = ops.join_heads((q, k, v), 1, state.channels)
    beta, alpha = ops.split_heads(layer.linear(h, f"{stem}ba", False), heads, (each, each))
    return x, gate, alpha, beta
