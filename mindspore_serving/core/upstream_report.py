"""State and counters of one upstream of a model, as workers report them.  Plain data."""

import msgspec

STATES = ("ready", "slow start", "busy", "half-open", "open", "draining", "unready")
"""States of an upstream; requests are sent in the first two, and one in the state half-open."""


class UpstreamReport(msgspec.Struct, frozen=True):
    """State of an upstream, one of `STATES`, and counters since the start of the worker.

    `open` are requests whose answer is not complete, `outstanding` their estimated tokens that are
    not computed yet.
    """

    name: str
    state: str
    weight: float
    open: int
    outstanding: int
    requests: int
    errors: int
