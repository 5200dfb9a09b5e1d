"""Positions as config.json describes them: rotary frequencies, query scales and score biases.

Knows no tensor.
"""

import math
from collections import ChainMap
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.architecture import INTERLEAVED, SECTIONS, Config
from mindspore_serving.llm.descriptions.config_types import number, size
from mindspore_serving.llm.models.rope import Rope, rope_from

# Frequencies of time, height and width by their kind and number: the defaults of transformers.
SECTIONS_OF = {
    (SECTIONS, 64): [16, 24, 24],
    (SECTIONS, 32): [8, 12, 12],
    (INTERLEAVED, 64): [24, 20, 20],
    (INTERLEAVED, 32): [11, 11, 10],
}
DISTANCES, FARTHEST = 32, 128  # rows of MPNet's table, and distance at which the last row begins


@dataclass(frozen=True, slots=True)
class Temperature:
    """Scale of the queries of `layers`: 1 + beta * log(1 + floor((position + first) / length))."""

    beta: float
    length: int
    first: int
    layers: frozenset[int]


def temperature(config: Config, rotated: tuple[bool, ...]) -> Temperature | None:
    """Return the scale of queries by position, if there is any.

    `rotated` tells for each layer whether it has rotary positions.
    """
    scaling = scaling_of(config)
    beta = scaling.get("llama_4_scaling_beta")
    if beta:  # Ministral 3, all layers
        length = size(scaling, "original_max_position_embeddings")
        return Temperature(float(beta), length, 0, frozenset(range(len(rotated))))
    if not config.get("attn_temperature_tuning"):
        return None
    unrotated = frozenset(i for i, is_rotated in enumerate(rotated) if not is_rotated)
    return Temperature(number(config, "attn_scale"), size(config, "floor_scale"), 1, unrotated)


def scaling_of(config: Config) -> Config:
    """Return the rotary parameters: those of layers without a window, if there are two sets."""
    scaling: Config = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return scaling.get("full_attention") or scaling


def ropes(
    config: Config, dims: tuple[int, int], trained: int, longest: int
) -> tuple[Rope, Rope | None]:
    """Return the rotary frequencies of all layers, or those of layers without and with a window.

    `dims` are the rotated features of a head in layers without and with a window; `trained` and
    `longest` are as in `rope_from`.
    """
    full, windowed = dims
    top = ("partial_rotary_factor", "original_max_position_embeddings")
    shared = {name: config[name] for name in top if config.get(name) is not None}
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    base = float(config.get("rope_theta") or 10000.0)

    def rope(parameters: Config, theta: float, dim: int = full) -> Rope:
        return rope_from(
            ChainMap(cast(Any, parameters), shared),
            base=theta,
            head_dim=dim,
            trained=trained,
            longest=longest,
        )

    local_base = config.get("rope_local_base_freq")
    if "full_attention" in scaling:  # one entry for each kind of layer
        local = scaling.get("sliding_attention") or {}
        return rope(scaling["full_attention"], base), rope(
            local, float(local_base or base), windowed
        )
    return rope(scaling, base), rope({}, float(local_base), windowed) if local_base else None


def image_axes(config: Config, kind: str, count: int) -> tuple[int, ...]:
    """Return `Rope.axes` for `count` frequencies, by config.json's mrope_section.

    `kind` is SECTIONS, for the frequencies of each axis one after another, or INTERLEAVED, for
    those of height and width between those of time.

    Raises StartError for missing or impossible sections.
    """
    sections = scaling_of(config).get("mrope_section") or SECTIONS_OF.get((kind, count), [])
    is_valid = len(sections) == len(("time", "height", "width"))
    if not is_valid or (kind != INTERLEAVED and sum(sections) != count):
        raise StartError(
            f"rope scaling has mrope_section {sections!r}, expected 3 ints, with the sum {count}"
        )
    if kind == INTERLEAVED:
        return tuple(i % 3 if i < 3 * sections[i % 3] else 0 for i in range(count))
    return tuple(axis for axis, size in enumerate(sections) for _ in range(size))


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Return the ALiBi slopes of `num_heads` heads (arXiv:2108.12409).

    For n heads they are 2**(-8/n), its square, and so on; if n is no power of two, those of the
    power below it and then every second one of the power above it.
    """
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    slopes += [2.0 ** (-4 * i / power) for i in range(1, 2 * (num_heads - power), 2)]
    return tuple(slopes)


def distance_rows(longest: int) -> list[int]:
    """Return MPNet's row of the table of distances for each offset from -n to n.

    n is `longest` - 1.  Half of the rows are for each side; of these, half are for single distances
    and the others for ranges that grow logarithmically up to 128.
    """
    half, max_distance = DISTANCES // 2, longest - 1
    rows = []
    for offset in range(-max_distance, max_distance + 1):
        distance, row = abs(offset), abs(offset)
        if distance >= half // 2:
            share = np.log(np.float32(distance) / np.float32(half // 2))
            share = np.float32(share) / np.float32(math.log(FARTHEST / (half // 2)))
            row = min(half // 2 + int(share * (half - half // 2)), half - 1)
        rows.append(row + (half if offset > 0 else 0))
    return rows
