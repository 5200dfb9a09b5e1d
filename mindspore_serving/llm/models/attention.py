"""A layer's attention: projections, norms of queries and keys, positions.

Latent attention (DeepSeek's MLA) is expanded to keys and values of every head before they reach the
cache, so a cached token is as large as with ordinary attention.
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

LATENT_EPS = 1e-6  # of the norms within latent attention; config.json has no key for it


@dataclass(frozen=True, slots=True)
class AttentionContext:
    """Rotary tables, query scales and shared keys and values, computed once per pass.

    `shared` has the keys and values that later layers attend to as well, by layer.
    """

    tables: Tensor | None
    local: Tensor | None  # tables of layers with a sliding window
    query_scale: Tensor | None  # [T, 1]
    slopes: tuple[float, ...] | None
    shared: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, ops: Ops, spec: ModelSpec, inputs: DecoderInputs) -> "AttentionContext":
        """Compute the context of a pass over `inputs`."""
        tables = local = query_scale = slopes = None
        if any(spec.rotated):
            local = tables = _tables(ops, spec.rope, inputs)
        if spec.local_rope is not None:
            local = _tables(ops, spec.local_rope, inputs)
        if spec.temperature:
            t = spec.temperature
            query_scale = ops.query_scale(inputs.positions, t.beta, t.length, t.first)
        if spec.architecture.alibi:
            scale = spec.attention_scale if spec.architecture.alibi_scaled else 1.0
            slopes = tuple(slope * scale for slope in alibi_slopes(spec.num_heads))
        return cls(tables, local, query_scale, slopes)


def _tables(ops: Ops, rope: Rope, inputs: DecoderInputs) -> Tensor:
    longer = (inputs.uses_long_rope, rope.long_freq) if rope.switch else None
    return ops.rope_tables(inputs.positions, rope.inv_freq, rope.scale, longer)


def attention(layer: Layer, h: Tensor, context: AttentionContext) -> Tensor:
    """Return the output of the layer's attention, [T, H], for its normalised input `h`, [T, H]."""
    ops, spec, names, index = layer.ops, layer.spec, layer.architecture.names, layer.index
    source, attention_spec = spec.sources[index], spec.attention(index, context.slopes)
    tables = context.local if spec.windows[index] else context.tables
    if not spec.rotated[index]:
        tables = None
    h = scaled(ops, h, spec.scales.attention_input)
    gate = None
    if spec.latent:
        q, k, v = _project_latent(layer, spec.latent, h, tables)
    elif source != index:
        q = _normalise_and_rotate(layer, layer.linear(h, names.qkv[0], spec.qkv_bias), tables)
        k, v = context.shared[source]  # written to the cache again, unchanged
    else:
        q, k, v, gate = _project(layer, h, tables, attention_spec)
    if index in spec.sources[index + 1 :]:
        context.shared[index] = (k, v)
    if spec.temperature and index in spec.temperature.layers:
        q = ops.mul(q, context.query_scale)
    out = ops.attention(source, q, k, v, attention_spec)
    if spec.latent:
        padding = spec.head_dim - spec.latent.value
        out, *_ = ops.split_heads(out, spec.num_heads, (spec.latent.value, padding))
    if gate is not None:
        out = ops.mul(out, ops.sigmoid(gate))
    out = ops.all_reduce(layer.linear(out, names.output, spec.output_bias))
    return scaled(ops, out, spec.scales.attention)


def _project(
    layer: Layer, h: Tensor, tables: Tensor | None, attention_spec: AttentionSpec
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Project `h` to queries, keys and values, and the output gate if the architecture has one."""
    ops, spec, architecture = layer.ops, layer.spec, layer.architecture
    kv_size, names = attention_spec.num_kv_heads * attention_spec.head_dim, architecture.names.qkv
    if spec.keys_are_values and not attention_spec.window:
        names = names[:2]
    sizes = (attention_spec.num_heads * attention_spec.head_dim, kv_size, kv_size)
    q, k, *rest = layer.projected(h, names, sizes, spec.qkv_bias)
    v, gate = rest[0] if rest else k, None
    k = scaled(ops, k, spec.scales.key)
    if architecture.output_gate:
        q, gate = ops.split_heads(
            q, attention_spec.num_heads, (attention_spec.head_dim, attention_spec.head_dim)
        )
    if architecture.value_norm:
        v = ops.head_rms_norm(v, None, attention_spec.num_kv_heads, spec.norm_eps)
    return (
        _normalise_and_rotate(layer, q, tables),
        _normalise_and_rotate(layer, k, tables, attention_spec.num_kv_heads),
        v,
        gate,
    )


def _normalise_and_rotate(
    layer: Layer, x: Tensor, tables: Tensor | None, kv_heads: int = 0
) -> Tensor:
    """Normalise and rotate queries, or keys if `kv_heads` is their number of heads."""
    spec, architecture = layer.spec, layer.architecture
    name = architecture.names.k_norm if kv_heads else architecture.names.q_norm
    num_heads = kv_heads or spec.num_heads
    # Without a weight, only layers with positions have the norm (Llama 4).
    is_normed = spec.qk_norm and (architecture.qk_norm != UNWEIGHTED or tables is not None)
    if is_normed and not architecture.norm_after_rope:
        x = _head_norm(layer, x, name, num_heads)
    if tables is not None:
        x = layer.ops.rope(x, tables, num_heads, pairs=architecture.rope == PAIRS)
    if is_normed and architecture.norm_after_rope:
        x = _head_norm(layer, x, name, num_heads)
    return x


def _head_norm(layer: Layer, x: Tensor, name: str, num_heads: int) -> Tensor:
    ops, architecture, eps = layer.ops, layer.architecture, layer.spec.norm_eps
    if architecture.qk_norm == OF_ALL:
        return layer.norm(x, name)
    if architecture.qk_norm == OF_EACH_HEAD:
        return ops.head_layer_norm(x, layer.weight(name), num_heads, eps)
    weight = None if architecture.qk_norm == UNWEIGHTED else layer.weight(name)
    return ops.head_rms_norm(x, weight, num_heads, eps, plus_one=architecture.norm == RMS_PLUS_ONE)


def _project_latent(
    layer: Layer, latent: Latent, h: Tensor, tables: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    ops, spec, prefix = layer.ops, layer.spec, "self_attn."
    heads, pairs, width = spec.num_heads, layer.architecture.rope == PAIRS, spec.head_dim
    x = h
    if latent.q_rank:
        x = layer.linear(h, f"{prefix}q_a_proj", spec.qkv_bias)
        x = ops.rms_norm(x, layer.weight(f"{prefix}q_a_layernorm"), LATENT_EPS)
    q = layer.linear(x, f"{prefix}q_b_proj" if latent.q_rank else f"{prefix}q_proj", False)
    unrotated, rotated = ops.split_heads(q, heads, (latent.plain, latent.rotated))
    rotated = ops.rope(rotated, tables, heads, pairs=pairs)
    q = ops.join_heads((unrotated, rotated), heads, width)

    compressed = layer.linear(h, f"{prefix}kv_a_proj_with_mqa", spec.qkv_bias)
    kv_latent, rotated = ops.split(compressed, (latent.kv_rank, latent.rotated))
    kv_latent = ops.rms_norm(kv_latent, layer.weight(f"{prefix}kv_a_layernorm"), LATENT_EPS)
    expanded = layer.linear(kv_latent, f"{prefix}kv_b_proj", False)
    unrotated, values = ops.split_heads(expanded, heads, (latent.plain, latent.value))
    rotated = ops.repeat_head(ops.rope(rotated, tables, 1, pairs=pairs), heads)
    k = ops.join_heads((unrotated, rotated), heads, width)
    return q, k, ops.join_heads((values,), heads, width)
