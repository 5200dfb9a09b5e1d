"""How many requests may be in flight: of the server, and of each servable.  No I/O.

Half of the server's limit is divided evenly: each servable has its own part, which no other can
take.  The other half is for whoever asks first.  So a servable that hangs, or is slow, holds at
most the half and its own part, and the others go on.
"""

from mindspore_serving.errors import Overloaded


class Share:
    """Of one servable.  `most` is its own limit, 0 for none."""

    __slots__ = ("most", "name", "num_sure", "num_used")

    def __init__(self, name: str, most: int = 0) -> None:
        self.name = name
        self.most = most
        self.num_used = 0
        self.num_sure = 0  # below as many nothing else needs to be asked


class Shares:
    """All of them, within `limit`."""

    def __init__(self, limit: int) -> None:
        self._shares: dict[str, Share] = {}
        self._num_own = 0  # that nobody else can take from a servable
        self._num_common = 0  # in use, of the half for all
        self.limit = limit

    @property
    def limit(self) -> int:
        """The most requests in flight; may be set at any time."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self._divide()

    def share(self, name: str, most: int = 0) -> Share:
        """That of servable `name`, whose own limit is now `most`."""
        share = self._shares.setdefault(name, Share(name))
        share.most = most
        self._divide()
        return share

    def take(self, share: Share) -> None:
        """One more request.  Raises Overloaded."""
        if share.num_used < share.num_sure:
            share.num_used += 1
            return
        self.check(share)
        self.count(share)

    def check(self, share: Share) -> None:
        """Raise Overloaded if there is no room for one more."""
        if share.num_used < share.num_sure:
            return
        if 0 < share.most <= share.num_used:
            raise Overloaded(
                f"Serving Error: {share.num_used} requests to servable {share.name} are in flight, "
                f"its max_requests is {share.most}"
            )
        if share.num_used >= self._num_own and self._num_common >= self._most_common:
            raise Overloaded(
                f"Serving Error: enqueued requests count exceeds the limit {self._limit}"
            )

    def count(self, share: Share) -> None:
        """One more, which is part of a request that was taken, so never refused."""
        share.num_used += 1
        self._num_common += share.num_used > self._num_own

    def release(self, share: Share) -> None:
        """One less."""
        share.num_used -= 1
        if share.num_used >= self._num_own:
            self._num_common -= 1

    def _divide(self) -> None:
        count = max(1, len(self._shares))
        self._num_own = self._limit // (2 * count)
        self._most_common = self._limit - self._num_own * count
        for share in self._shares.values():
            share.num_sure = min(self._num_own, share.most or self._num_own)
        self._num_common = sum(max(0, s.num_used - self._num_own) for s in self._shares.values())
