"""Options that only some models have: latent attention, mixtures of experts, scales.

Read from config.json.  Knows no runtime.
"""

from dataclasses import dataclass
from statistics import NormalDist

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions import layer_kinds
from mindspore_serving.llm.descriptions.architecture import Config, Experts
from mindspore_serving.llm.descriptions.config_types import number, size
from mindspore_serving.llm.models.expert_block import Clamp, Routing

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Latent attention: keys and values are expanded from one vector of `kv_rank` (DeepSeek's MLA).

    A head has `plain` features without and `rotated` features with positions, and `value` features
    of values.  `q_rank` is the rank of queries, 0 if they are projected directly.
    """

    q_rank: int
    kv_rank: int
    plain: int
    rotated: int
    value: int


def latent_of(config: Config) -> Latent | None:
    """Return the latent attention of config.json, if the model has it."""
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
class Mixture:
    """Mixture of experts of the layers `layers`.

    `has_shared`: one more expert computes every token.  `is_latent`: experts have fewer features
    than the layer.
    """

    num_experts: int
    routing: Routing
    clamp: Clamp | None
    has_shared: bool
    is_latent: bool
    layers: frozenset[int]


def mixture_of(config: Config, experts: Experts | None, num_layers: int) -> Mixture | None:
    """Return the mixture of experts of config.json, if there is one.

    Raises StartError for a routing that is impossible.
    """
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
        is_latent=config.get("moe_latent_size") is not None and experts.latent is not None,
        layers=layer_kinds.sparse(config, num_layers),
    )


def _routing(config: Config, experts: Experts, count: int) -> Routing:
    groups = size(config, "n_group", default=1)
    routing = Routing(
        top_k=size(config, "num_experts_per_tok", "moe_k"),
        normalize=bool(config.get("norm_topk_prob", False)),
        min_total=scale_of(config, "moe_norm_min", 0.0),
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
    """Return whether there is a shared expert: named by the architecture, with a count over 0."""
    counts = (config.get(key) for key in ("n_shared_experts", "moe_num_shared_experts"))
    num_shared = next((count for count in counts if count is not None), 1)
    return experts.shares_dense or bool(experts.shared and num_shared)


@dataclass(frozen=True, slots=True)
class Scales:
    """Constant factors of config.json (µP), each 1.0 if the model has none.

    They multiply the embedding, what a block adds to the residual stream, the final state, and
    inputs, keys, gates and outputs of the blocks in their names.  `state_parts` are those of the
    gate, x, B, C and time steps of a Mamba layer.
    """

    embedding: float = 1.0
    residual: float = 1.0
    head: float = 1.0
    attention_input: float = 1.0
    attention: float = 1.0
    key: float = 1.0
    gate: float = 1.0
    mlp: float = 1.0
    state_input: float = 1.0
    state: float = 1.0
    state_parts: tuple[float, ...] = ()


def scales_of(config: Config) -> Scales:
    """Return the factors of config.json."""
    gate, mlp = _several(config, "mlp_multipliers", 2) or (1.0, 1.0)
    parts = _several(config, "ssm_multipliers", 5)
    return Scales(
        embedding=scale_of(config, "embedding_multiplier", 1.0),
        residual=scale_of(config, "residual_multiplier", 1.0),
        head=scale_of(config, "lm_head_multiplier", 1.0) / scale_of(config, "logits_scaling", 1.0),
        attention_input=scale_of(config, "attention_in_multiplier", 1.0),
        attention=scale_of(config, "attention_out_multiplier", 1.0),
        key=scale_of(config, "key_multiplier", 1.0),
        gate=gate,
        mlp=mlp,
        state_input=scale_of(config, "ssm_in_multiplier", 1.0),
        state=scale_of(config, "ssm_out_multiplier", 1.0),
        state_parts=() if set(parts) == {1.0} else parts,
    )


def _several(config: Config, name: str, count: int) -> tuple[float, ...]:
    """Return the list of `count` factors under `name`, or an empty one."""
    factors = tuple(map(float, config.get(name) or ()))
    if len(factors) not in (0, count):
        raise StartError(f"config.json has {len(factors)} {name}, expected {count}")
    return factors


@dataclass(frozen=True, slots=True)
class Streams:
    """AltUp: `count` hidden states of each token; blocks compute the state at index `active`.

    With `scales_result` that state is multiplied by weights before it meets the layer's extra
    input.
    """

    count: int
    active: int
    scales_result: bool


def streams_of(config: Config) -> Streams | None:
    """Return the parallel hidden states of config.json, if the model has them."""
    if config.get("altup_num_inputs") is None:
        return None
    count, active = size(config, "altup_num_inputs"), config.get("altup_active_idx") or 0
    if active >= count:
        raise StartError(
            f"config.json has altup_active_idx {active}, expected less than altup_num_inputs "
            f"({count})"
        )
    return Streams(count, active, bool(config.get("altup_correct_scale")))


def cutoffs_of(config: Config, num_layers: int) -> tuple[float | None, ...]:
    """Return the cutoffs of gates per layer, in standard deviations; None where no gate is dropped.

    config.json has the share of gates that are 0.
    """
    shares = config.get("activation_sparsity_pattern") or ()
    if len(shares) not in (0, num_layers) or not all(share < 1 for share in shares):
        raise StartError(
            f"config.json has activation_sparsity_pattern {str(shares)[:80]}, expected a number "
            f"below 1 for each of {num_layers} layers"
        )
    cutoffs = tuple(NormalDist().inv_cdf(share) if share > 0 else None for share in shares)
    return cutoffs if any(shares) else ()


def scale_of(config: Config, name: str, default: float) -> float:
    """Return the number under `name`, or `default` if it is missing or 0."""
    value = config.get(name)
    return default if not value else float(value)
