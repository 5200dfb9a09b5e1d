"""The states that layers have in place of keys and values, or beside them: which layers, how large,
and what is around them, read from config.json.  Knows no runtime.
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
    """What is around the state of a Mamba-2 layer.

    Args:
        in_bias, out_bias: of the projections.
        limits: least and largest time step.
        norm_groups: parts of the result that are normalised each by itself; 0 is no norm.
        norms_first: the norm is before the gate, not behind it.
    """

    in_bias: bool
    out_bias: bool
    limits: tuple[float, float]
    norm_groups: int
    norms_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """What the layers `layers` remember of a text, and how large: the last inputs of a convolution
    of `width` tokens over `channels` features, and with `heads` a matrix [value_dim, key_dim] for
    each head of values.  `has_bias`: of the convolution, and in LFM2 of what is around it.
    """

    layers: frozenset[int]
    channels: int
    width: int
    has_bias: bool = False
    heads: Heads | None = None
    mamba: Mamba | None = None

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of a layer's state."""
        convolution, heads = (self.channels, self.width), self.heads
        if heads is None:
            return (convolution,)
        return convolution, (heads.value_heads, heads.value_dim, heads.key_dim)

    @property
    def slot_bytes(self) -> int:
        """Of all layers' states, in float32."""
        return 4 * len(self.layers) * sum(map(prod, self.shapes))


def state_of(config: Config, form: Architecture, hidden: int, activation: str) -> LayerState | None:
    """None if no layer has one.  Raises StartError: sizes that do not fit each other."""
    kinds = config.get("layer_types") or ()
    layers = frozenset(i for i, kind in enumerate(kinds) if kind == form.state)
    if not layers:
        return None
    if form.state == CONVOLUTION:
        width, has_bias = size(config, "conv_L_cache"), bool(config.get("conv_bias"))
        return LayerState(layers=layers, channels=hidden, width=width, has_bias=has_bias)
    activation = config.get("mamba_hidden_act") or activation
    if activation not in SILU:
        raise StartError(
            f"config.json has the activation {activation!r} in layers with a state, expected silu"
        )
    if form.state == MAMBA:
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
    """Of time steps; infinity is written as a number that JSON does not have, or by transformers as
    an object.
    """
    given = config.get("time_step_limit")
    if given is None:
        return 0.0, inf
    found = [inf if one == {"__float__": "Infinity"} else one for one in given]
    if len(found) != 2 or not all(map(_is_step, found)) or found[0] > found[1]:
        raise StartError(
            f"config.json has time_step_limit {str(given)[:80]}, expected the least and the "
            "largest time step"
        )
    return float(found[0]), float(found[1])


def _is_step(value: object) -> bool:
    return isinstance(value, int | float) and (0 <= value < 1e30 or value == inf)
