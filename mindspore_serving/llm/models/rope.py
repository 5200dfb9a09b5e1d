"""Rotary position frequencies from a model's configuration, as plain numbers."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mindspore_serving.errors import StartError

Frequencies = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary frequencies of a model.

    `inv_freq` has the radians per position of each pair of features; features beyond
    2*len(inv_freq) are not rotated.  cos and sin are multiplied by `scale`.

    All tokens of a sequence of more than `switch` tokens are rotated by `long_freq`; 0: no sequence
    is.  `axes` has for each pair the part of a token's position that rotates it, of (time, height,
    width); empty if positions have one part.
    """

    inv_freq: Frequencies
    scale: float = 1.0
    long_freq: Frequencies = ()
    switch: int = 0
    axes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Setting:
    """Input of a kind of scaling; `longest` is the longest sequence to serve, in tokens."""

    base: float
    dim: int  # rotated features
    head_dim: int
    trained: int  # positions that the model was trained for
    longest: int
    parameters: Mapping[str, Any]

    def number(self, name: str) -> float:
        value = self.parameters.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise StartError(f"rope scaling has {name} {value!r}, expected a number over 0")
        return float(value)

    def original(self) -> float:
        name = "original_max_position_embeddings"
        return self.number(name) if self.parameters.get(name) else float(self.trained)


def rope_from(
    parameters: Mapping[str, Any], *, base: float, head_dim: int, trained: int, longest: int
) -> Rope:
    """Return the frequencies that `parameters` (rope_parameters, or rope_scaling) describe.

    Args:
        parameters: rope_parameters or rope_scaling of config.json.
        base: theta, unless `parameters` has rope_theta.
        head_dim: features of a head.
        trained: max_position_embeddings.
        longest: longest sequence to serve; decides the base of dynamic scaling, once, and whether
            longrope needs its second table.

    Raises:
        StartError: an unknown kind of scaling, or a missing or impossible parameter.
    """
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    scaling = SCALINGS.get(kind)
    if scaling is None:
        raise StartError(f"rope scaling {kind!r} is unknown, expected one of {sorted(SCALINGS)}")
    base = float(parameters.get("rope_theta") or base)
    share = float(parameters.get("partial_rotary_factor") or 1.0)
    if share > 1:
        raise StartError(f"config.json has partial_rotary_factor {share}, expected at most 1")
    dim = int(head_dim * share)
    try:
        return scaling(_Setting(base, dim, head_dim, trained, longest, parameters))
    except (ArithmeticError, ValueError) as error:
        raise StartError(f"rope scaling {kind!r} of {parameters} is impossible: {error}") from None


def _plain(base: float, dim: int) -> Frequencies:
    return tuple(base ** (-i / dim) for i in range(0, dim, 2))


def _proportional(setting: _Setting) -> Rope:
    """Use the fastest frequencies of a complete head and do not rotate its other features.

    Each feature is still half a head away from its pair.
    """
    rotated = _plain(setting.base, setting.head_dim)[: setting.dim // 2]
    factor = float(setting.parameters.get("factor") or 1.0)
    unrotated = (0.0,) * (setting.head_dim // 2 - len(rotated))
    return Rope((*(f / factor for f in rotated), *unrotated))


def _linear(setting: _Setting) -> Rope:
    factor = setting.number("factor")
    return Rope(tuple(f / factor for f in _plain(setting.base, setting.dim)))


def _dynamic(setting: _Setting) -> Rope:
    """Let the base grow with the sequence beyond the trained length (NTK-aware scaling).

    With an `alpha` (Hunyuan) it grows by a fixed power.
    """
    if setting.parameters.get("alpha"):
        growth = setting.number("alpha") ** (setting.dim / (setting.dim - 2))
        return Rope(_plain(setting.base * growth, setting.dim))
    factor, dim = setting.number("factor"), setting.dim
    longest = max(setting.longest, setting.trained)
    growth = factor * longest / setting.trained - (factor - 1)
    return Rope(_plain(setting.base * growth ** (dim / (dim - 2)), dim))


def _llama3(setting: _Setting) -> Rope:
    """Divide slow frequencies by `factor`, keep fast ones, and blend those between."""
    factor, original = setting.number("factor"), setting.original()
    low, high = setting.number("low_freq_factor"), setting.number("high_freq_factor")

    def scaled(frequency: float) -> float:
        turns = original * frequency / (2 * math.pi)  # within the original context
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        return kept * frequency + (1 - kept) * frequency / factor

    return Rope(tuple(scaled(f) for f in _plain(setting.base, setting.dim)))


def _yarn(setting: _Setting) -> Rope:
    """Blend along the feature index and sharpen attention (arXiv:2309.00071)."""
    dim, original = setting.dim, setting.original()
    has_factor = setting.parameters.get("factor") is not None
    factor = setting.number("factor") if has_factor else setting.trained / original

    def index_of(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(setting.base))

    low = index_of(float(setting.parameters.get("beta_fast") or 32))
    high = index_of(float(setting.parameters.get("beta_slow") or 1))
    if setting.parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low or 0.001

    def scaled(index: int, frequency: float) -> float:
        slowed = min(max((index - low) / span, 0.0), 1.0)
        return frequency * (1 - slowed) + frequency / factor * slowed

    plain = _plain(setting.base, dim)
    return Rope(tuple(map(scaled, range(len(plain)), plain)), _yarn_scale(setting, factor))


def _yarn_scale(setting: _Setting, factor: float) -> float:
    attention_factor = setting.parameters.get("attention_factor")
    if attention_factor is not None:
        return float(attention_factor)

    mscale = setting.parameters.get("mscale")
    all_dim = setting.parameters.get("mscale_all_dim")
    if mscale and all_dim:
        return sharpness(factor, mscale) / sharpness(factor, all_dim)
    return sharpness(factor, 1.0)


def sharpness(factor: float, weight: float) -> float:
    """Return YaRN's factor of attention scores for a sequence `factor` times as long."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(setting: _Setting) -> Rope:
    """Divide each frequency by a factor of its own (arXiv:2402.13753).

    There is one set of factors within the original context and one beyond it.
    """
    original, parameters = setting.original(), setting.parameters
    factor = float(parameters.get("factor") or setting.trained / original)
    scale = parameters.get("attention_factor")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    short = _divided(setting, "short_factor")
    if setting.longest <= original:
        return Rope(short, float(scale))
    return Rope(short, float(scale), _divided(setting, "long_factor"), int(original))


def _divided(setting: _Setting, name: str) -> Frequencies:
    divisors, plain = setting.parameters.get(name), _plain(setting.base, setting.dim)
    if not isinstance(divisors, list) or len(divisors) != len(plain):
        raise StartError(f"rope scaling has {name} {divisors!r}, expected {len(plain)} numbers")
    return tuple(f / float(divisor) for f, divisor in zip(plain, divisors, strict=True))


SCALINGS: dict[str, Callable[[_Setting], Rope]] = {
    "default": lambda setting: Rope(_plain(setting.base, setting.dim)),
    "mrope": lambda setting: Rope(_plain(setting.base, setting.dim)),  # its parts: `positions`
    "proportional": _proportional,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,  # longrope's first name
}
