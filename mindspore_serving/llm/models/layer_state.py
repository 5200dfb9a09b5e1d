"""Recurrent states of layers, beside keys and values or in place of them.

Which layers have one, its size, and the parameters around it, read from config.json.  Knows no
runtime.
"""

from dataclasses import dataclass
from math import inf, prod

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.architecture import (
    CONVOLUTION,
    MAMBA,
    SILU,
    Architecture,
    Config,
)
from mindspore_serving.llm.descriptions.config_types import size
from mindspore_serving.llm.models.state_rules import Heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """Parameters of a Mamba-2 layer around its state.

    Args:
        in_bias: whether the input projection has a bias.
        out_bias: whether the output projection has a bias.
        limits: smallest and largest time step.
        norm_groups: number of groups of the result that are normalised separately; 0 is no norm.
        spanning_groups: the same, of groups that are divided over ranks.
        norms_first: whether the norm is applied before the gate, not after it.
    """

    in_bias: bool
    out_bias: bool
    limits: tuple[float, float]
    norm_groups: int
    norms_first: bool
    spanning_groups: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """Recurrent state of the layers `layers`, and its size.

    A convolution keeps its last `width` inputs of `channels` features.  With `heads` there is also
    a matrix [value_dim, key_dim] for each value head.  `has_bias` is of the convolution, and in
    LFM2 of the projections around it.
    """

    layers: frozenset[int]
    channels: int
    width: int
    has_bias: bool = False
    heads: Heads | None = None
    mamba: Mamba | None = None

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of a layer's state."""
        convolution, heads = (self.channels, self.width), self.heads
        if heads is None:
            return (convolution,)
        return convolution, (heads.value_heads, heads.value_dim, heads.key_dim)

    @property
    def slot_bytes(self) -> int:
        """Bytes of all layers' states of one sequence, in float32."""
        return 4 * len(self.layers) * sum(map(prod, self.shapes))


def state_of(
    config: Config, architecture: Architecture, hidden: int, activation: str
) -> LayerState | None:
    """Return the recurrent state of the model's layers, None if no layer has one.

    Raises StartError: sizes that do not fit each other.
    """
    kinds = config.get("layer_types") or ()
    layers = frozenset(i for i, kind in enumerate(kinds) if kind == architecture.state)
    if not layers:
        return None
    if architecture.state == CONVOLUTION:
        width, has_bias = size(config, "conv_L_cache"), bool(config.get("conv_bias"))
        return LayerState(layers=layers, channels=hidden, width=width, has_bias=has_bias)
    activation = config.get("mamba_hidden_act") or activation
    if activation not in SILU:
        raise StartError(
            f"config.json has the activation {activation!r} in layers with a state, expected silu"
        )
    if architecture.state == MAMBA:
        return _mamba(config, layers, hidden)
    heads = Heads(
        key_heads=size(config, "linear_num_key_heads"),
        value_heads=size(config, "linear_num_value_heads"),
        key_dim=size(config, "linear_key_head_dim"),
        value_dim=size(config, "linear_value_head_dim"),
    )
    _check_heads(heads, "linear_num_value_heads", "linear_num_key_heads")
    return LayerState(
        layers=layers,
        channels=heads.features,
        width=size(config, "linear_conv_kernel_dim"),
        heads=heads,
    )


def _mamba(config: Config, layers: frozenset[int], hidden: int) -> LayerState:
    count = size(config, "mamba_n_heads")
    inner = size(config, "mamba_d_ssm", default=size(config, "mamba_expand") * hidden)
    width = config.get("mamba_d_head")
    heads = Heads(
        key_heads=size(config, "mamba_n_groups"),
        value_heads=count,
        key_dim=size(config, "mamba_d_state"),
        value_dim=inner // count if width in (None, "auto") else size(config, "mamba_d_head"),
    )
    if heads.value_heads * heads.value_dim != inner:
        raise StartError(
            f"config.json has mamba_n_heads {count} of mamba_d_head {heads.value_dim}, expected "
            f"{inner} features together"
        )
    _check_heads(heads, "mamba_n_heads", "mamba_n_groups")
    has_in_bias = bool(config.get("mamba_proj_bias"))
    return LayerState(
        layers=layers,
        channels=heads.features,
        width=size(config, "mamba_d_conv"),
        has_bias=bool(config["mamba_conv_bias"]),
        heads=heads,
        mamba=Mamba(
            in_bias=has_in_bias,
            out_bias=bool(config.get("projectors_bias", has_in_bias)),
            limits=_limits(config),
            norm_groups=heads.key_heads if config["mamba_rms_norm"] else 0,
            norms_first=bool(config["mamba_norm_before_gate"]),
        ),
    )


def _check_heads(heads: Heads, values: str, keys: str) -> None:
    if heads.value_heads % heads.key_heads:
        raise StartError(
            f"config.json has {values} {heads.value_heads}, expected a multiple of "
            f"{keys}={heads.key_heads}"
        )


def _limits(config: Config) -> tuple[float, float]:
    """Return the smallest and the largest time step.

    Infinity is written as a number that JSON does not have, or by transformers as an object.
    """
    setting = config.get("time_step_limit")
    if setting is None:
        return 0.0, inf
    limits = [inf if limit == {"__float__": "Infinity"} else limit for limit in setting]
    if len(limits) != 2 or not all(map(_is_step, limits)) or limits[0] > limits[1]:
        raise StartError(
            f"config.json has time_step_limit {str(setting)[:80]}, expected the smallest and the "
            "largest time step"
        )
    return float(limits[0]), float(limits[1])


def _is_step(value: object) -> bool:
    return isinstance(value, int | float) and (0 <= value < 1e30 or value == inf)
