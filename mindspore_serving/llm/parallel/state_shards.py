"""Parts of recurrent states that ranks hold: heads, with their channels of the convolution.

A rank has whole value heads with the keys that they use.  Fewer heads of keys than ranks are held
by several ranks each, in Mamba-2 layers; norms of results then span ranks.  Knows no tensor.
"""

from dataclasses import replace
from typing import TypeAlias

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.layer_state import LayerState
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.models.state_rules import Heads

Units: TypeAlias = tuple[int, int]
"""Number of heads, and rows of a tensor that each has."""


def cut_state(state: LayerState, size: int) -> LayerState:
    """Return the state of one of `size` ranks.  Raises StartError for a size that does not fit."""
    heads = state.heads
    if heads is None:
        if state.channels % size:
            raise StartError(
                f"tensor_parallel is {size}, expected a divisor of the {state.channels} channels "
                "of the model's convolutions"
            )
        return replace(state, channels=state.channels // size)
    shares = " or a multiple of them" if state.mamba else ""
    has_keys = not heads.key_heads % size or (state.mamba and not size % heads.key_heads)
    if heads.value_heads % size or not has_keys:
        raise StartError(
            f"tensor_parallel is {size}, expected a divisor of the {heads.value_heads} value heads "
            f"of the model's states that is a divisor of their {heads.key_heads} key heads{shares}"
        )
    heads = replace(
        heads,
        key_heads=max(1, heads.key_heads // size),
        value_heads=heads.value_heads // size,
    )
    mamba = state.mamba
    if mamba is not None and mamba.norm_groups:
        spanning = mamba.norm_groups if mamba.norm_groups < size else 0
        groups = 0 if spanning else mamba.norm_groups // size
        mamba = replace(mamba, norm_groups=groups, spanning_groups=spanning)
    return replace(state, channels=heads.features, heads=heads, mamba=mamba)


def state_rows(spec: ModelSpec) -> dict[str, list[Units]]:
    """Return the parts of the tensors that are cut by rows, by names relative to a layer.

    A name is that of a module or of a tensor by itself; parts follow each other in the tensor.
    """
    state = spec.state
    if state is None:
        return {}
    if state.heads is None:
        channels = (state.channels, 1)
        return {"conv.in_proj": [channels] * 3, "conv.conv": [channels]}
    heads = state.heads
    keys, values = (heads.key_heads, heads.key_dim), (heads.value_heads, heads.value_dim)
    numbers = (heads.value_heads, 1)
    if state.mamba is None:
        return _delta_rule_rows(heads, keys, values, numbers)
    stem = spec.architecture.names.mamba
    return {
        f"{stem}.in_proj": [values, values, keys, keys, numbers],
        f"{stem}.conv1d": [values, keys, keys],
        f"{stem}.norm": [values],
        **{f"{stem}.{name}": [numbers] for name in ("A_log", "dt_bias", "D")},
    }


def _delta_rule_rows(
    heads: Heads, keys: Units, values: Units, numbers: Units
) -> dict[str, list[Units]]:
    stem, values_per_key = "linear_attn", heads.value_heads // heads.key_heads
    fused = 2 * (heads.key_dim + values_per_key * heads.value_dim)
    return {
        f"{stem}.in_proj_qkvz": [(heads.key_heads, fused)],
        f"{stem}.in_proj_ba": [(heads.key_heads, 2 * values_per_key)],
        f"{stem}.in_proj_qkv": [keys, keys, values],
        f"{stem}.in_proj_z": [values],
        f"{stem}.conv1d": [keys, keys, values],
        **{f"{stem}.{name}": [numbers] for name in ("in_proj_a", "in_proj_b", "A_log", "dt_bias")},
    }


def state_outputs(spec: ModelSpec) -> tuple[str, ...]:
    """Return the names of matrices that are cut by inputs, relative to a layer."""
    state = spec.state
    if state is None:
        return ()
    if state.heads is None:
        return ("conv.out_proj",)
    stem = "linear_attn" if state.mamba is None else spec.architecture.names.mamba
    return (f"{stem}.out_proj",)
