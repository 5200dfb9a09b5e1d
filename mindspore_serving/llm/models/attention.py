"""A layer's attention: projections, norms of queries and keys, positions.

Latent attention (DeepSeek's MLA) is widened to whole keys and values before they reach the cache,
which holds as many features of each head as with any other attention.
"""

from dataclasses import dataclass, field

from mindspore_serving.llm.descriptions.architecture import (
    OF_ALL,
    OF_EACH_HEAD,
    PAIRS,
    RMS_PLUS_ONE,
    UNWEIGHTED,
)
from mindspore_serving.llm.models.layer import Layer, scaled
from mindspore_serving.llm.models.ops import AttentionSpec, DecoderInputs, Ops, Tensor
from mindspore_serving.llm.models.positions import alibi_slopes
from mindspore_serving.llm.models.rope import Rope
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.models.spec_parts import Latent

LATENT_EPS = 1e-6  # of the norms within latent attention, which config.json does not have


@dataclass(frozen=True, slots=True)
class Positions:
    """What layers need to know of the tokens' positions, computed once in a pass; and keys and
    values that later layers attend to as well, by layer.
    """

    tables: Tensor | None
    local: Tensor | None  # of layers with a window
    growth: Tensor | None
    slopes: tuple[float, ...] | None
    shared: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, ops: Ops, spec: ModelSpec, inputs: DecoderInputs) -> "Positions":
        tables = local = growth = slopes = None
        if any(spec.rotated):
            local = tables = _tables(ops, spec.rope, inputs)
        if spec.local_rope is not None:
            local = _tables(ops, spec.local_rope, inputs)
        if spec.temperature:
            t = spec.temperature
            growth = ops.growth(inputs.positions, t.beta, t.length, t.first)
        if spec.form.alibi:
            scale = spec.attention_scale if spec.form.alibi_scaled else 1.0
            slopes = tuple(slope * scale for slope in alibi_slopes(spec.num_heads))
        return cls(tables, local, growth, slopes)


def _tables(ops: Ops, rope: Rope, inputs: DecoderInputs) -> Tensor:
    longer = (inputs.uses_long_rope, rope.long_freq) if rope.switch else None
    return ops.rope_tables(inputs.positions, rope.inv_freq, rope.scale, longer)


def attention(layer: Layer, h: Tensor, positions: Positions) -> Tensor:
    ops, spec, names, index = layer.ops, layer.spec, layer.form.names, layer.index
    source, own = spec.sources[index], spec.attention(index, positions.slopes)
    tables = positions.local if spec.windows[index] else positions.tables
    if not spec.rotated[index]:
        tables = None
    h = scaled(ops, h, spec.scales.attention_input)
    gate = None
    if spec.latent:
        q, k, v = _latent(layer, spec.latent, h, tables)
    elif source != index:
        q = _placed(layer, layer.linear(h, names.qkv[0], spec.qkv_bias), tables)
        k, v = positions.shared[source]  # written once more, as they are
    else:
        q, k, v, gate = _projected(layer, h, tables, own)
    if index in spec.sources[index + 1 :]:
        positions.shared[index] = (k, v)
    if spec.temperature and index in spec.temperature.layers:
        q = ops.mul(q, positions.growth)
    out = ops.attention(source, q, k, v, own)
    if spec.latent:
        rest = spec.head_dim - spec.latent.value
        out, *_ = ops.split_heads(out, spec.num_heads, (spec.latent.value, rest))
    if gate is not None:
        out = ops.mul(out, ops.sigmoid(gate))
    out = ops.all_reduce(layer.linear(out, names.output, spec.output_bias))
    return scaled(ops, out, spec.scales.attention)


def _projected(
    layer: Layer, h: Tensor, tables: Tensor | None, own: AttentionSpec
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Queries, keys, values, and the gate of the result if there is one."""
    ops, spec, form = layer.ops, layer.spec, layer.form
    kv_size, names = own.num_kv_heads * own.head_dim, form.names.qkv
    if spec.keys_are_values and not own.window:
        names = names[:2]
    sizes = (own.num_heads * own.head_dim, kv_size, kv_size)
    q, k, *rest = layer.projected(h, names, sizes, spec.qkv_bias)
    v, gate = rest[0] if rest else k, None
    k = scaled(ops, k, spec.scales.key)
    if form.output_gate:
        q, gate = ops.split_heads(q, own.num_heads, (own.head_dim, own.head_dim))
    if form.value_norm:
        v = ops.head_rms_norm(v, None, own.num_kv_heads, spec.norm_eps)
    return _placed(layer, q, tables), _placed(layer, k, tables, own.num_kv_heads), v, gate


def _placed(layer: Layer, x: Tensor, tables: Tensor | None, kv_heads: int = 0) -> Tensor:
    """Queries, or keys of `kv_heads` heads, normalised and turned by their positions."""
    spec, form = layer.spec, layer.form
    name = form.names.k_norm if kv_heads else form.names.q_norm
    num_heads = kv_heads or spec.num_heads
    # Without a weight, only layers with positions have the norm (Llama 4).
    is_normed = spec.qk_norm and (form.qk_norm != UNWEIGHTED or tables is not None)
    if is_normed and not form.norm_after_rope:
        x = _head_norm(layer, x, name, num_heads)
    if tables is not None:
        x = layer.ops.rope(x, tables, num_heads, pairs=form.rope == PAIRS)
    if is_normed and form.norm_after_rope:
        x = _head_norm(layer, x, name, num_heads)
    return x


def _head_norm(layer: Layer, x: Tensor, name: str, num_heads: int) -> Tensor:
    ops, form, eps = layer.ops, layer.form, layer.spec.norm_eps
    if form.qk_norm == OF_ALL:
        return layer.norm(x, name)
    if form.qk_norm == OF_EACH_HEAD:
        return ops.head_layer_norm(x, layer.weight(name), num_heads, eps)
    weight = None if form.qk_norm == UNWEIGHTED else layer.weight(name)
    return ops.head_rms_norm(x, weight, num_heads, eps, plus_one=form.norm == RMS_PLUS_ONE)


def _latent(
    layer: Layer, latent: Latent, h: Tensor, tables: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    ops, spec, prefix = layer.ops, layer.spec, "self_attn."
    heads, pairs, width = spec.num_heads, layer.form.rope == PAIRS, spec.head_dim
    x = h
    if latent.q_rank:
        x = layer.linear(h, f"{prefix}q_a_proj", spec.qkv_bias)
        x = ops.rms_norm(x, layer.weight(f"{prefix}q_a_layernorm"), LATENT_EPS)
    q = layer.linear(x, f"{prefix}q_b_proj" if latent.q_rank else f"{prefix}q_proj", False)
    plain, turned = ops.split_heads(q, heads, (latent.plain, latent.rotated))
    turned = ops.rope(turned, tables, heads, pairs=pairs)
    q = ops.join_heads((plain, turned), heads, width)

    both = layer.linear(h, f"{prefix}kv_a_proj_with_mqa", spec.qkv_bias)
    small, turned = ops.split(both, (latent.kv_rank, latent.rotated))
    small = ops.rms_norm(small, layer.weight(f"{prefix}kv_a_layernorm"), LATENT_EPS)
    wide = layer.linear(small, f"{prefix}kv_b_proj", False)
    plain, values = ops.split_heads(wide, heads, (latent.plain, latent.value))
    turned = ops.repeat_head(ops.rope(turned, tables, 1, pairs=pairs), heads)
    k = ops.join_heads((plain, turned), heads, width)
    return q, k, ops.join_heads((values,), heads, width)
