"""Sets of processor cores for workers: "0-3;4-7" is one set for every other worker, "numa" a node.

It knows no machine: a worker checks that it has the cores.
"""

import re

from mindspore_serving.errors import InvalidInputs

NUMA = "numa"
MAX_CORE = 1 << 16
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def parse_core_sets(text: str) -> tuple[frozenset[int], ...]:
    """Return the sets of `text`; none for "" and NUMA.  Raises InvalidInputs."""
    if text in ("", NUMA):
        return ()
    return tuple(parse_cores(part, text) for part in text.split(";"))


def parse_cores(part: str, text: str = "") -> frozenset[int]:
    """Return the cores of a list such as "0-3,8".  Raises InvalidInputs that shows `text`."""
    cores: set[int] = set()
    for item in part.strip().split(","):
        match = _RANGE.fullmatch(item.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < MAX_CORE:
            raise InvalidInputs(
                f"Parameter 'cores' is {text or part!r:.200}, expected sets of cores as '0-3;4-7' "
                f"or '0,2;1,3', or '{NUMA}' for a NUMA node each"
            )
        cores.update(range(first, last + 1))
    return frozenset(cores)
