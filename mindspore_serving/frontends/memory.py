"""How much clients take of what a server has once for all: bytes of bodies and of answers, open
streams.  Counts, holds nothing.

No client takes all.  An address may have three quarters of what other addresses leave, and a
connection three quarters of what the others of its address leave of that.  So there is room for the
first of another address, and for the first of another connection.
"""

from collections.abc import Hashable
from typing import NamedTuple

NO_MEMORY = "The bodies of other requests take all memory that there is for them"


class MemoryPeer(NamedTuple):
    """A connection, and the address that it comes from: "" where the clients of all connections are
    one to us, as those of a unix socket are; they share with nobody.
    """

    address: str
    connection: Hashable


NOBODY = MemoryPeer("", "")


def peer_of(name: str) -> MemoryPeer:
    """The peer that grpcio calls `name`, such as ipv4:127.0.0.1:5000."""
    if not name.startswith("ip"):
        return NOBODY
    return MemoryPeer(name.rpartition(":")[0], name)


class Quota:
    """`held` of at most `most` units are taken.  Each may have `largest` of them where they are
    free, whatever it leaves, and each connection `least`, also where they are not.
    """

    __slots__ = ("_least", "_of", "held", "largest", "most")

    def __init__(self, most: int, *, largest: int = 0, least: int = 0) -> None:
        self.most = most
        self.held = 0
        self.largest, self._least = largest, least
        self._of: dict[Hashable, int] = {}  # by address, and by peer

    def of(self, peer: MemoryPeer) -> tuple[int, int]:
        """What its address has, and what its connection has."""
        return self._of.get(peer.address, 0), self._of.get(peer, 0)

    def has_room(self, peer: MemoryPeer, amount: int) -> bool:
        """Whether it may have so many more."""
        if not self.held:
            return True
        free, (of_address, of_connection) = self.most - self.held, self.of(peer)
        if not peer.address:
            return amount <= free
        if of_connection + amount <= self._least:
            return True
        if amount > free:
            return False
        most = max(3 * (of_address + free) // 4, self.largest)
        if of_address + amount > most:
            return False
        most = 3 * (of_connection + most - of_address) // 4
        return of_connection + amount <= max(most, self.largest)

    def take(self, peer: MemoryPeer, amount: int) -> bool:
        """Whether it got so many more."""
        if not self.has_room(peer, amount):
            return False
        self._add(peer, amount)
        return True

    def give_back(self, peer: MemoryPeer, amount: int) -> None:
        self._add(peer, -amount)

    def allowance(self, address: object) -> "Allowance":
        """That of a new connection, from `address` as sockets have it."""
        if not isinstance(address, tuple):
            return Allowance(self, NOBODY)
        return Allowance(self, MemoryPeer(address[0], object()))

    def _add(self, peer: MemoryPeer, amount: int) -> None:
        self.held += amount
        if peer.address:
            for key in (peer.address, peer):
                after = self._of.get(key, 0) + amount
                if after:
                    self._of[key] = after
                else:
                    self._of.pop(key, None)  # of no bytes there was none


class Allowance:
    """What one peer may take of a quota."""

    __slots__ = ("_peer", "_quota")

    def __init__(self, quota: Quota, peer: MemoryPeer) -> None:
        self._quota = quota
        self._peer = peer

    @property
    def most(self) -> int:
        return self._quota.most

    def take(self, amount: int) -> bool:
        """Whether it got so many more."""
        return self._quota.take(self._peer, amount)

    def give_back(self, amount: int) -> None:
        self._quota.give_back(self._peer, amount)
