"""All faults, and which of them this machine can do."""

from tests.chaos import clients, hostile, limits, shortages, signals, stages
from tests.chaos.fault import Fault

FAULTS: list[Fault] = [
    *signals.rows(),
    *stages.rows(),
    *shortages.rows(),
    *clients.rows(),
    *hostile.rows(),
]
assert len({fault.name for fault in FAULTS}) == len(FAULTS), "two faults of one name"


def missing_need(fault: Fault) -> str:
    """What `fault` needs and this machine has not; "" if it can be done."""
    return limits.missing(fault.needs)
