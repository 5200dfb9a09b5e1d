"""Split of a servable's requests over its versions: which version a request without one gets.

It knows no request and no worker.  The same arguments give the same version in every process.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf, log
from typing import Any

from mindspore_serving.errors import InvalidInputs

KEY, HEADER = "key", "header:"
MAX_VERSIONS = 64
ROUTING = ("traffic", "sticky", "shadow", "shadow_tolerance")
"""Options of servables that workers do not depend on."""

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")  # name of a header (RFC 9110, 5.1)
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio (Knuth, TAOCP vol. 3, 6.4)
_RANGE = 1 << 64


@dataclass(frozen=True, slots=True)
class TrafficRule:
    """Rule of a servable: weights of versions, percents of shadows, and what requests stick by.

    `sticky` is "", KEY or HEADER with the name of a header.  Numbers in answers of a shadow may
    differ by `tolerance`, absolute or relative.
    """

    weights: Mapping[int, float] = field(default_factory=dict)
    shadows: Mapping[int, float] = field(default_factory=dict)
    sticky: str = ""
    tolerance: float = 0.0

    @property
    def header(self) -> str:
        """Name of the header that requests stick by; "" if there is none."""
        return self.sticky[len(HEADER) :] if self.sticky.startswith(HEADER) else ""

    @property
    def versions(self) -> set[int]:
        """Versions that get requests of clients, or copies of them."""
        shares = (*self.weights.items(), *self.shadows.items())
        return {version for version, share in shares if share > 0}


def rule_of(options: Any) -> TrafficRule | None:
    """Return the rule in checked options of a servable; None if they have none."""
    if not options.traffic and not options.shadow:
        return None
    weights = {int(version): weight for version, weight in options.traffic.items()}
    shadows = {int(version): percent for version, percent in options.shadow.items()}
    return TrafficRule(weights, shadows, options.sticky, options.shadow_tolerance)


def choose_by_key(weights: Mapping[int, float], salt: str, key: str) -> int:
    """Return the version of `key`: the same as long as the weights are.

    Weighted rendezvous hashing (Schindelhauer and Schomaker 2005, the logarithmic method): after a
    change of weights, only as many keys move as shares have changed.
    """

    def distance(version: int) -> float:
        text = f"{salt}\0{version}\0{key}".encode(errors="surrogatepass")
        number = int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
        return -log((number + 1) / (_RANGE + 1)) / weights[version]

    return min((version for version in sorted(weights) if weights[version] > 0), key=distance)


def choose_by_turn(weights: Mapping[int, float], turn: int) -> int:
    """Return the version of the request with the number `turn`.

    Multiples of the golden ratio spread evenly: any run of requests is split nearly by weight.
    """
    rest = spread(turn) * sum(weights.values())
    chosen = 0
    for version in sorted(weights):
        if weights[version] > 0:
            chosen = version
            rest -= weights[version]
            if rest < 0:
                break
    return chosen


def spread(turn: int) -> float:
    """Return a number from 0 to 1 for each turn, spread evenly over any run of turns."""
    return (turn * _GOLDEN % _RANGE) / _RANGE


def available(weights: Mapping[int, float], *choices: Collection[int]) -> Mapping[int, float]:
    """Return the weights of the versions in the first of `choices` that has any of them.

    All weights if none has: a request then fails with the reason of the version.
    """
    for versions in choices:
        left = {version: weight for version, weight in weights.items() if version in versions}
        if any(weight > 0 for weight in left.values()):
            return left
    return weights


# --- options ----------------------------------------------------------------------------------


def parse_weights(text: str) -> dict[str, float]:
    """Parse VERSION=NUMBER pairs that are separated by commas.  Raises InvalidInputs."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        version, _, number = part.partition("=")
        try:
            value = float(number)
        except ValueError:
            raise InvalidInputs(f"{text[:200]!r}: expected VERSION=NUMBER,VERSION=NUMBER") from None
        if version.strip() in weights:
            raise InvalidInputs(f"{text[:200]!r} has {version.strip()} twice")
        weights[version.strip()] = value
    return weights


def check_traffic(options: Any) -> dict[str, Any]:
    """Return the checked options ROUTING of `options`.  Raises InvalidInputs."""
    traffic = _weights("traffic", options.traffic)
    if traffic and not any(traffic.values()):
        raise InvalidInputs(
            f"Parameter 'traffic' is {options.traffic!r:.200}, expected a weight over 0 for at "
            "least one version"
        )
    shadow = _weights("shadow", options.shadow, 100)
    tolerance = options.shadow_tolerance
    if type(tolerance) not in (int, float) or not 0 <= tolerance < inf:
        raise InvalidInputs(
            f"Parameter 'shadow_tolerance' is {tolerance!r:.64}, expected a number from 0"
        )
    return {
        "traffic": traffic,
        "shadow": shadow,
        "sticky": _sticky(options.sticky),
        "shadow_tolerance": float(tolerance),
    }


def _sticky(value: object) -> str:
    text = value.lower() if isinstance(value, str) else None
    if text is not None:
        if text in ("", KEY):
            return text
        if text.startswith(HEADER) and _TOKEN.fullmatch(text[len(HEADER) :]):
            return text
    raise InvalidInputs(
        f"Parameter 'sticky' is {value!r:.100}, expected 'key', or 'header:NAME' with the name of "
        "a header, such as 'header:x-user'"
    )


def _weights(name: str, value: object, high: float = 1e9) -> dict[str, float]:
    """Return numbers by version, with versions as texts."""
    if value is None:
        return {}
    checked: dict[str, float] = {}
    entries: Any = value.items() if isinstance(value, Mapping) else [(None, None)]
    for version, number in entries:
        text = str(version)
        is_version = type(version) in (int, str) and text.isdecimal() and len(text) <= 10
        is_number = type(number) in (int, float) and 0 <= number <= high
        if not is_version or int(text) < 1 or not is_number or len(checked) == MAX_VERSIONS:
            limit = f"0 to {high:g}"
            raise InvalidInputs(
                f"Parameter '{name}' is {value!r:.200}, expected numbers of {limit} by version, "
                f"such as {{1: 90, 2: 10}}, for at most {MAX_VERSIONS} versions"
            )
        checked[str(int(text))] = float(number)
    return checked


def check_versions(name: str, options: Any, versions: Collection[int]) -> None:
    """Raise InvalidInputs if `options` send requests to a version that is not in `versions`."""
    rule = rule_of(options)
    missing = sorted(rule.versions.difference(versions)) if rule is not None else []
    if missing:
        raise InvalidInputs(
            f"servable {name}: traffic or shadow is set for version "
            f"{', '.join(map(str, missing))}, but the versions to be served are "
            f"{', '.join(map(str, sorted(versions))) or 'none'}: change the weights first, or "
            "which versions are served (--versions)"
        )
