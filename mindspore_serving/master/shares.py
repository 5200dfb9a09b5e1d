"""Limit of requests in flight, of the server and of each servable.  No I/O.

Half of the server's limit is divided evenly: each servable has a reserved share.  The other half is
first come, first served.  So a servable that hangs or is slow holds at most that half and its
reserved share, and the other servables continue.
"""

from mindspore_serving.errors import Overloaded


class Share:
    """Requests in flight of one servable; `max_requests` is its configured limit, 0 for none."""

    __slots__ = ("max_requests", "name", "num_guaranteed", "num_used")

    def __init__(self, name: str, max_requests: int = 0) -> None:
        self.name = name
        self.max_requests = max_requests
        self.num_used = 0
        self.num_guaranteed = 0  # requests that are admitted without further checks


class Shares:
    """Shares of all servables, within `limit`."""

    def __init__(self, limit: int) -> None:
        self._shares: dict[str, Share] = {}
        self._num_reserved = 0  # per servable
        self._num_common = 0  # in use, of the common half
        self.limit = limit

    @property
    def limit(self) -> int:
        """Largest number of requests in flight; can be set at any time."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self._divide()

    def share(self, name: str, max_requests: int = 0) -> Share:
        """Return the share of servable `name`, and set its limit to `max_requests`."""
        share = self._shares.setdefault(name, Share(name))
        share.max_requests = max_requests
        self._divide()
        return share

    def take(self, share: Share) -> None:
        """Count one more request.  Raises Overloaded."""
        if share.num_used < share.num_guaranteed:
            share.num_used += 1
            return
        self.check(share)
        self.count(share)

    def check(self, share: Share) -> None:
        """Raise Overloaded if one more request would exceed a limit."""
        if share.num_used < share.num_guaranteed:
            return
        if 0 < share.max_requests <= share.num_used:
            raise Overloaded(
                f"Serving Error: {share.num_used} requests to servable {share.name} are in flight, "
                f"its max_requests is {share.max_requests}"
            )
        if share.num_used >= self._num_reserved and self._num_common >= self._max_common:
            raise Overloaded(
                f"Serving Error: enqueued requests count exceeds the limit {self._limit}"
            )

    def count(self, share: Share) -> None:
        """Count one more call, which is never refused because its request was admitted."""
        share.num_used += 1
        self._num_common += share.num_used > self._num_reserved

    def release(self, share: Share) -> None:
        """Count one request less."""
        share.num_used -= 1
        if share.num_used >= self._num_reserved:
            self._num_common -= 1

    def _divide(self) -> None:
        count = max(1, len(self._shares))
        self._num_reserved = self._limit // (2 * count)
        self._max_common = self._limit - self._num_reserved * count
        for share in self._shares.values():
            reserved = self._num_reserved
            share.num_guaranteed = min(reserved, share.max_requests or reserved)
        self._num_common = sum(
            max(0, s.num_used - self._num_reserved) for s in self._shares.values()
        )
