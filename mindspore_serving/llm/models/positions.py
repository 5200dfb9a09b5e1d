"""What config.json says of positions: rotary frequencies, how queries grow with the text, and what
is added to scores.

Knows no tensor.
"""

import math
from collections import ChainMap
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from mindspore_serving.llm.descriptions.architecture import Config
from mindspore_serving.llm.descriptions.config_types import number, size
from mindspore_serving.llm.models.rope import Rope, rope_from

DISTANCES, FARTHEST = 32, 128  # rows of MPNet's table, and places that the last one begins at


@dataclass(frozen=True, slots=True)
class Temperature:
    """Queries of `layers` grow by 1 + beta * log(1 + floor((position + first) / length))."""

    beta: float
    length: int
    first: int
    layers: frozenset[int]


def temperature(config: Config, rotated: tuple[bool, ...]) -> Temperature | None:
    """The growth of queries, if there is any; `rotated` are the layers with rotary positions."""
    scaling = scaling_of(config)
    beta = scaling.get("llama_4_scaling_beta")
    if beta:  # Ministral 3, all layers
        length = size(scaling, "original_max_position_embeddings")
        return Temperature(float(beta), length, 0, frozenset(range(len(rotated))))
    if not config.get("attn_temperature_tuning"):
        return None
    unturned = frozenset(i for i, turns in enumerate(rotated) if not turns)
    return Temperature(number(config, "attn_scale"), size(config, "floor_scale"), 1, unturned)


def scaling_of(config: Config) -> Config:
    """The rotary parameters, those of layers without a window where kinds differ."""
    found: Config = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return found.get("full_attention") or found


def ropes(
    config: Config, dims: tuple[int, int], trained: int, longest: int
) -> tuple[Rope, Rope | None]:
    """For all layers, or for those without a window and for those with one, which have `dims`
    features of a head.
    """
    whole, windowed = dims
    top = ("partial_rotary_factor", "original_max_position_embeddings")
    shared = {name: config[name] for name in top if config.get(name) is not None}
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = float(config.get("rope_theta") or 10000.0)

    def rope(parameters: Config, theta: float, dim: int = whole) -> Rope:
        return rope_from(
            ChainMap(cast(Any, parameters), shared),
            base=theta,
            head_dim=dim,
            trained=trained,
            longest=longest,
        )

    local_base = config.get("rope_local_base_freq")
    if "full_attention" in given:  # one entry for each kind of layer
        local = given.get("sliding_attention") or {}
        return rope(given["full_attention"], base), rope(local, float(local_base or base), windowed)
    return rope(given, base), rope({}, float(local_base), windowed) if local_base else None


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """2**(-8/n), its square, and so on, for n heads; if n is no power of two, those of the power
    below it and then every second one of the power above it.
    """
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    slopes += [2.0 ** (-4 * i / power) for i in range(1, 2 * (num_heads - power), 2)]
    return tuple(slopes)


def distance_rows(longest: int) -> list[int]:
    """MPNet's row of the table of distances for a token so many places before another, or behind
    it: of -n to n places, where n is the longest distance.  Half of the rows are for each side; of
    these half for single distances, the others for ranges that grow up to 128.
    """
    half, most = DISTANCES // 2, longest - 1
    found = []
    for places in range(-most, most + 1):
        distance, row = abs(places), abs(places)
        if distance >= half // 2:
            share = np.log(np.float32(distance) / np.float32(half // 2))
            share = np.float32(share) / np.float32(math.log(FARTHEST / (half // 2)))
            row = min(half // 2 + int(share * (half - half // 2)), half - 1)
        found.append(row + (half if places > 0 else 0))
    return found
