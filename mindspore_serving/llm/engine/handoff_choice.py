"""Decision whether another worker computes a prompt, by measured costs.  No I/O and no clock.

Here, a prompt of N blocks delays each stream of this worker by about N times the seconds of a
block, as its pieces make steps longer.  There, it delays no stream but its own: by the prompts
ahead of it, by a round trip, by a link that is slower than computing, and by copying the blocks
into the cache, which delays all streams here a little.  Pieces of a state are only sent and copied.
"""

from dataclasses import dataclass

MIN_BLOCKS = 8  # while nothing is known of the costs
_RATE = 0.2  # part of a new measurement in the mean
SLACK = 3.0  # seconds without a block, beyond PATIENT times those that all under way should take
PATIENT = 4.0
UNKNOWN_WAIT = 10.0  # seconds for a block while the costs are not known
MAX_WAIT = 30.0


@dataclass(slots=True)
class HandoffCosts:
    """Measured means, in seconds; 0 until there was a measurement.

    Args:
        compute: of a block, where it is computed.
        wire: of a block, on the link between two machines; 0 on one machine.
        copy: of a block into the cache of this worker.
        round_trip: of a prompt that another worker computes, beside its computing.
    """

    compute: float = 0.0
    copy: float = 0.0
    round_trip: float = 0.0
    wire: float = 0.0

    @property
    def slowest(self) -> float:
        """Seconds from one block to the next: blocks are sent while further ones are computed."""
        return max(self.compute, self.wire)

    def observe(
        self,
        *,
        compute: float = 0.0,
        copy: float = 0.0,
        round_trip: float = 0.0,
        wire: float = 0.0,
    ) -> None:
        """Add measurements; 0 is none."""
        self.compute = _mean(self.compute, compute)
        self.wire = _mean(self.wire, wire)
        self.copy = _mean(self.copy, copy)
        self.round_trip = _mean(self.round_trip, round_trip)


def is_worth_handoff(
    num_blocks: int,
    *,
    num_streams: int,
    num_ahead: int,
    costs: HandoffCosts,
    min_blocks: int | None = None,
    num_pieces: int = 0,
) -> bool:
    """Return whether another worker should compute `num_blocks` of a prompt.

    As many `num_pieces` of a state as large as a block are sent behind them.
    `num_streams` are the streams of this worker that would be delayed: at least one is assumed, as
    another may begin meanwhile.  `num_ahead` are the blocks that others compute for this one.  The
    operator's `min_blocks` decides alone, if it is set.
    """
    if min_blocks is not None:
        return num_blocks >= min_blocks
    if not costs.compute:
        return num_blocks >= MIN_BLOCKS
    streams = max(1, num_streams)
    copying = (num_blocks + num_pieces) * costs.copy
    saved = streams * (num_blocks * costs.compute - copying)
    waiting = costs.round_trip + num_ahead * costs.slowest
    sending = num_blocks * (costs.slowest - costs.compute) + num_pieces * costs.wire
    return saved > waiting + sending + copying


def patience(num_blocks: int, num_ahead: int, costs: HandoffCosts) -> float:
    """Return the seconds without a block after which this worker computes the prompt itself."""
    if not costs.compute:
        return UNKNOWN_WAIT
    return min(MAX_WAIT, SLACK + PATIENT * costs.slowest * (num_blocks + num_ahead))


def _mean(mean: float, value: float) -> float:
    if not value:
        return mean
    return mean + (value - mean) * (_RATE if mean else 1.0)
