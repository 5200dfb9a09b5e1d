"""A layer's attention: projections, norms of queries and keys, positions."""

from dataclasses import dataclass, field

from mindspore_serving.llm.descriptions.architecture import (
    OF_ALL,
    OF_EACH_HEAD,
    PAIRS,
    RMS_PLUS_ONE,
    UNWEIGHTED,
)
from mindspore_serving.llm.models.layer import Layer, scaled
from mindspore_serving.llm.models.ops import (
    AttentionSpec,
    DecoderInputs,
    Ops,
    Tensor,
    latent_sizes,
)
from mindspore_serving.llm.models.rope import Rope
from mindspore_serving.llm.models.spec import ModelSpec

LATENT_EPS = 1e-6  # of the norms within latent attention; config.json has no key for it


@dataclass(frozen=True, slots=True)
class AttentionContext:
    """Rotary tables, query scales and shared keys and values, computed once per pass.

    `shared` has the keys and values that later layers attend to as well, by layer.
    """

    tables: Tensor | None
    local: Tensor | None  # tables of layers with a sliding window
    query_scale: Tensor | None  # [T, 1]
    shared: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, ops: Ops, spec: ModelSpec, inputs: DecoderInputs) -> "AttentionContext":
        """Compute the context of a pass over `inputs`."""
        tables = local = query_scale = None
        if any(spec.rotated):
            local = tables = _tables(ops, spec.rope, inputs)
        if spec.local_rope is not None:
            local = _tables(ops, spec.local_rope, inputs)
        if spec.temperature:
            t = spec.temperature
            query_scale = ops.query_scale(inputs.positions, t.beta, t.length, t.first)
        return cls(tables, local, query_scale)


def _tables(ops: Ops, rope: Rope, inputs: DecoderInputs) -> Tensor:
    longer = (inputs.uses_long_rope, rope.long_freq) if rope.switch else None
    if rope.axes and inputs.rope_positions is not None:
        positions = inputs.rope_positions
        return ops.rope_tables(positions, rope.inv_freq, rope.scale, longer, rope.axes)
    return ops.rope_tables(inputs.positions, rope.inv_freq, rope.scale, longer)


def attention(layer: Layer, h: Tensor, context: AttentionContext) -> Tensor:
    """Return the output of the layer's attention, [T, H], for its normalised input `h`, [T, H]."""
    ops, spec, index = layer.ops, layer.spec, layer.index
    tables = context.local if spec.windows[index] else context.tables
    if not spec.rotated[index]:
        tables = None
    h = scaled(ops, h, spec.scales.attention_input)
    attend = _attend_latent if spec.latent else _attend
    out = attend(layer, h, tables, context)
    out = ops.all_reduce(layer.linear(out, layer.architecture.names.output, spec.output_bias))
    return scaled(ops, out, spec.scales.attention)


def _attend(layer: Layer, h: Tensor, tables: Tensor | None, context: AttentionContext) -> Tensor:
    ops, spec, names, index = layer.ops, layer.spec, layer.architecture.names, layer.index
    source, attention_spec = spec.sources[index], spec.attention(index)
    gate = None
    if source != index:
        q = _normalise_and_rotate(layer, layer.linear(h, names.qkv[0], spec.qkv_bias), tables)
        k, v = context.shared[source]  # written to the cache again, unchanged
    else:
        q, k, v, gate = _project(layer, h, tables, attention_spec)
    if index in spec.sources[index + 1 :]:
        context.shared[index] = (k, v)
    q = _tempered(layer, q, context)
    out = ops.attention(source, q, k, v, attention_spec)
    return out if gate is None else ops.mul(out, ops.sigmoid(gate))


def _tempered(layer: Layer, q: Tensor, context: AttentionContext) -> Tensor:
    temperature = layer.spec.temperature
    if temperature is None or layer.index not in temperature.layers:
        return q
    return layer.ops.mul(q, context.query_scale)


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
        return ops.spanning_rms_norm(x, layer.weight(name), 1, eps)
    if architecture.qk_norm == OF_EACH_HEAD:
        return ops.head_layer_norm(x, layer.weight(name), num_heads, eps)
    weight = None if architecture.qk_norm == UNWEIGHTED else layer.weight(name)
    return ops.head_rms_norm(x, weight, num_heads, eps, plus_one=architecture.norm == RMS_PLUS_ONE)


def _attend_latent(layer: Layer, h: Tensor, tables: Tensor, context: AttentionContext) -> Tensor:
    """Attend by latent attention (DeepSeek's MLA)."""
    ops, spec, prefix = layer.ops, layer.spec, "self_attn."
    attention_spec, pairs = spec.attention(layer.index), layer.architecture.rope == PAIRS
    latent, heads = latent_sizes(attention_spec), spec.num_heads
    x = h
    if latent.q_rank:
        x = layer.linear(h, f"{prefix}q_a_proj", spec.qkv_bias)
        x = ops.rms_norm(x, layer.weight(f"{prefix}q_a_layernorm"), LATENT_EPS)
    q = layer.linear(x, f"{prefix}q_b_proj" if latent.q_rank else f"{prefix}q_proj", False)
    q = _tempered(layer, q, context)
    unrotated, rotated = ops.split_heads(q, heads, (latent.plain, latent.rotated))
    queries = unrotated, ops.rope(rotated, tables, heads, pairs=pairs)

    compressed = layer.linear(h, f"{prefix}kv_a_proj_with_mqa", spec.qkv_bias)
    kv_latent, rotated = ops.split(compressed, (latent.kv_rank, latent.rotated))
    kv_latent = ops.rms_norm(kv_latent, layer.weight(f"{prefix}kv_a_layernorm"), LATENT_EPS)
    key = kv_latent, ops.rope(rotated, tables, 1, pairs=pairs)
    expansion = layer.weight(f"{prefix}kv_b_proj", layer.architecture.names.matrix)
    return ops.latent_attention(layer.index, queries, key, expansion, attention_spec)
