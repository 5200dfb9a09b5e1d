"""What becomes of a part of a request whose worker has died.  Only the decision; no I/O."""

from enum import Enum

from mindspore_serving.master.request import PendingPart

MOST_DEATHS = 2  # of workers that had a part: it may be what they died of


class Fate(Enum):
    """Of a part."""

    WAIT = "it goes to another worker, like any"
    ALONE = "it is suspect: it goes to another worker, by itself"
    FAIL = "it is answered with an error"


def decide(part: PendingPart, *, was_running: bool, can_retry: bool) -> Fate:
    """`was_running`: the worker was at it when it died.  `can_retry`: the method may be called
    twice for one request."""
    if part.has_replied or not can_retry or part.is_alone:
        return Fate.FAIL
    part.num_deaths += 1
    if was_running or part.num_deaths >= MOST_DEATHS:
        return Fate.ALONE
    return Fate.WAIT
