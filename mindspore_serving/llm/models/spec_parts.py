"""What only some models have, read from config.json: latent attention, mixtures of experts, scales.

Knows no runtime.
"""

from dataclasses import dataclass
from math import prod

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models import layer_kinds
from mindspore_serving.llm.models.architecture import CONVOLUTION, Architecture, Config, Experts
from mindspore_serving.llm.models.config_types import number, size
from mindspore_serving.llm.models.ops import Clamp, Routing

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Attention whose keys and values are widened from one vector of `kv_rank` (DeepSeek's MLA).

    A head has `plain` features without and `rotated` features with positions, and `value` features
    of values.  `q_rank` is the same for queries, 0 if they are projected at once.
    """

    q_rank: int
    kv_rank: int
    plain: int
    rotated: int
    value: int


def latent_of(config: Config) -> Latent | None:
    if config.get("kv_lora_rank") is None:
        return None
    return Latent(
        q_rank=config.get("q_lora_rank") or 0,
        kv_rank=size(config, "kv_lora_rank"),
        plain=size(config, "qk_nope_head_dim"),
        rotated=size(config, "qk_rope_head_dim"),
        value=size(config, "v_head_dim"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """What the layers `layers` remember of a text, and how large: the last inputs of a convolution
    of `width` tokens over `channels` features, and with `value_heads` a matrix [value_dim, key_dim]
    for each of them.  `has_bias`: of the convolution and of what is around it."""

    layers: frozenset[int]
    channels: int
    width: int
    has_bias: bool = False
    key_heads: int = 0
    value_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of a layer's state."""
        convolution = (self.channels, self.width)
        if not self.value_heads:
            return (convolution,)
        return convolution, (self.value_heads, self.value_dim, self.key_dim)

    @property
    def slot_bytes(self) -> int:
        """Of all layers' states, in float32."""
        return 4 * len(self.layers) * sum(map(prod, self.shapes))


def state_of(config: Config, form: Architecture, hidden: int) -> LayerState | None:
    kinds = config.get("layer_types") or ()
    layers = frozenset(i for i, kind in enumerate(kinds) if kind == form.state)
    if not layers:
        return None
    if form.state == CONVOLUTION:
        width, has_bias = size(config, "conv_L_cache"), bool(config.get("conv_bias"))
        return LayerState(layers=layers, channels=hidden, width=width, has_bias=has_bias)
    key_heads, value_heads = (size(config, f"linear_num_{x}_heads") for x in ("key", "value"))
    key_dim, value_dim = (size(config, f"linear_{x}_head_dim") for x in ("key", "value"))
    if value_heads % key_heads:
        raise StartError(
            f"config.json has linear_num_value_heads {value_heads}, expected a multiple of "
            f"linear_num_key_heads={key_heads}"
        )
    return LayerState(
        layers=layers,
        channels=2 * key_heads * key_dim + value_heads * value_dim,
        width=size(config, "linear_conv_kernel_dim"),
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The experts of the layers `layers`; `has_shared` one that computes every token."""

    num_experts: int
    routing: Routing
    clamp: Clamp | None
    has_shared: bool
    layers: frozenset[int]


def mixture_of(config: Config, experts: Experts | None, num_layers: int) -> Mixture | None:
    """Raises StartError for a choice that cannot be made."""
    count = size(config, *EXPERT_COUNTS, default=0) if experts else 0
    if experts is None or not count:
        return None
    clamp = None
    if experts.clamped:
        clamp = Clamp(number(config, "swiglu_alpha"), number(config, "swiglu_limit"))
    return Mixture(
        num_experts=count,
        routing=_routing(config, experts, count),
        clamp=clamp,
        has_shared=_has_shared(config, experts),
        layers=layer_kinds.sparse(config, num_layers),
    )


def _routing(config: Config, experts: Experts, count: int) -> Routing:
    groups = size(config, "n_group", default=1)
    routing = Routing(
        top_k=size(config, "num_experts_per_tok", "moe_k"),
        normalize=bool(config.get("norm_topk_prob", False)),
        scores=experts.scores,
        scale=scale_of(config, "routed_scaling_factor", 1.0),
        groups=groups,
        top_groups=size(config, "topk_group", default=groups),
        by_pairs=experts.by_pairs and groups > 1,
        scales_input=experts.scales_input,
    )
    each, rest = divmod(count, groups)
    if rest or routing.top_groups > groups or routing.top_k > each * routing.top_groups:
        raise StartError(
            f"config.json has {count} experts in n_group {groups}, of which topk_group "
            f"{routing.top_groups} are chosen, expected equal groups that have num_experts_per_tok "
            f"{routing.top_k} experts together"
        )
    return routing


def _has_shared(config: Config, experts: Experts) -> bool:
    """An architecture that names the shared expert has it, but for a count of 0."""
    counts = (config.get(key) for key in ("n_shared_experts", "moe_num_shared_experts"))
    given = next((count for count in counts if count is not None), 1)
    return bool(experts.shared and given)


@dataclass(frozen=True, slots=True)
class Scales:
    """What embeddings, the sum of a layer and the final state are multiplied by."""

    embedding: float = 1.0
    residual: float = 1.0
    head: float = 1.0


def scales_of(config: Config) -> Scales:
    return Scales(
        scale_of(config, "embedding_multiplier", 1.0),
        scale_of(config, "residual_multiplier", 1.0),
        1 / scale_of(config, "logits_scaling", 1.0),
    )


def scale_of(config: Config, name: str, default: float) -> float:
    value = config.get(name)
    return default if not value else float(value)
