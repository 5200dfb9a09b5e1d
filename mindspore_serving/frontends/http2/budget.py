"""Budget of frames that cost a server work and bring no request forward.

Floods of resets, pings, settings, empty frames and tiny windows are one thing: frames without
progress.  Each spends a unit or more; an answer, and data in either direction, earn some back.
"""

from mindspore_serving.frontends.http2.frames import ConnectionFault, ErrorCode

LIMIT = 2_000
SWEPT = 400  # units that each sweep of idle time gives back
RESET = 4  # cost of a stream that the client gives up, or that violates the protocol
ANSWERED = 8  # earned by an answer


class FrameBudget:
    """Units that a connection may still spend."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = LIMIT

    def spend(self, units: int = 1) -> None:
        """Take units.  Raises ConnectionFault if there are none."""
        self.left -= units
        if self.left < 0:
            text = "too many frames that bring no request forward"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text)

    def earn(self, units: int) -> None:
        """Give units back."""
        self.left = min(LIMIT, self.left + units)
