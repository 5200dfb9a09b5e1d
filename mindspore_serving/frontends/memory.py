"""Quotas of resources that all clients of a server share, such as bytes and open streams.

A quota counts, it allocates nothing.  No client can use all of one: an address can have three
quarters of what other addresses leave, and a connection three quarters of what other connections of
its address leave of that.  So there is always room for a first request from another address, and
from another connection.
"""

from collections.abc import Hashable
from typing import Any, NamedTuple

NO_MEMORY = "The bodies of other requests use all the memory for bodies (max_body_memory)"


class MemoryPeer(NamedTuple):
    """A connection and its address.

    The address is "" if clients cannot be told apart, as on a unix socket: the rules of fairness
    do not apply then.
    """

    address: str
    connection: Hashable


ANONYMOUS = MemoryPeer("", "")


def peer_of(name: str) -> MemoryPeer:
    """Return the peer that grpcio calls `name`, such as ipv4:127.0.0.1:5000."""
    if not name.startswith("ip"):
        return ANONYMOUS
    return MemoryPeer(name.rpartition(":")[0], name)


def name_of(client: Any) -> str:
    """Return grpcio's name of the client at the address `client` of its socket."""
    if not isinstance(client, tuple):
        return "unix:"
    host, port = client[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def client_of(name: str) -> tuple[str, int] | None:
    """Return the address in a name of `name_of`; None of a unix socket."""
    if not name.startswith("ip"):
        return None
    host, _, port = name.partition(":")[2].rpartition(":")
    return host.strip("[]"), int(port)


class Quota:
    """A shared limit, of which `used` units are taken.

    Every peer can have `largest` units if they are free, whatever it leaves to others, and every
    connection `reserved` units even if they are not.
    """

    __slots__ = ("_reserved", "_used_by", "largest", "limit", "used")

    def __init__(self, limit: int, *, largest: int = 0, reserved: int = 0) -> None:
        self.limit = limit
        self.used = 0
        self.largest, self._reserved = largest, reserved
        self._used_by: dict[Hashable, int] = {}  # by address, and by peer

    def used_by(self, peer: MemoryPeer) -> tuple[int, int]:
        """Return the units that the address and the connection of a peer use."""
        return self._used_by.get(peer.address, 0), self._used_by.get(peer, 0)

    def has_room(self, peer: MemoryPeer, amount: int) -> bool:
        """Return whether a peer can have `amount` more units."""
        return not self.used or self.fits(amount, *self.used_by(peer), is_known=bool(peer.address))

    def fits(self, amount: int, of_address: int, of_connection: int, *, is_known: bool) -> bool:
        """Return whether a peer that uses so many units can have `amount` more.

        The rules of fairness are for peers whose address `is_known`.
        """
        free = self.limit - self.used
        if not is_known:
            return amount <= free
        if of_connection + amount <= self._reserved:
            return True
        if amount > free:
            return False
        # Three quarters of what other addresses leave, then of what other connections leave of it.
        address_limit = max(3 * (of_address + free) // 4, self.largest)
        if of_address + amount > address_limit:
            return False
        connection_limit = 3 * (of_connection + address_limit - of_address) // 4
        return of_connection + amount <= max(connection_limit, self.largest)

    def take(self, peer: MemoryPeer, amount: int) -> bool:
        """Take `amount` units for a peer; return whether there was room."""
        if not self.has_room(peer, amount):
            return False
        self._add(peer, amount)
        return True

    def give_back(self, peer: MemoryPeer, amount: int) -> None:
        self._add(peer, -amount)

    def allowance(self, address: object) -> "Allowance":
        """Return the allowance of a new connection; `address` is that of its socket."""
        return Allowance(self, address[0] if isinstance(address, tuple) else "")

    def of_address(self, address: str) -> int:
        """Return the units that the connections of an address use."""
        return self._used_by.get(address, 0)

    def add_of(self, key: Hashable, amount: int) -> None:
        """Count units of an address, or of a peer."""
        after = self._used_by.get(key, 0) + amount
        if after:
            self._used_by[key] = after
        else:
            self._used_by.pop(key, None)  # it has none if only 0 was taken

    def _add(self, peer: MemoryPeer, amount: int) -> None:
        self.used += amount
        if peer.address:
            self.add_of(peer.address, amount)
            self.add_of(peer, amount)


class Allowance:
    """The use of a quota by one connection, which counts its own units: streams take and leave."""

    __slots__ = ("_address", "_quota", "_used")

    def __init__(self, quota: Quota, address: str) -> None:
        self._quota, self._address, self._used = quota, address, 0

    @property
    def limit(self) -> int:
        """Units of the quota in all."""
        return self._quota.limit

    def take(self, amount: int) -> bool:
        """Take `amount` units; return whether there was room."""
        quota, address = self._quota, self._address
        if quota.used and not quota.fits(
            amount, quota.of_address(address), self._used, is_known=bool(address)
        ):
            return False
        self._add(amount)
        return True

    def give_back(self, amount: int) -> None:
        self._add(-amount)

    def _add(self, amount: int) -> None:
        self._quota.used += amount
        if self._address:
            self._used += amount
            self._quota.add_of(self._address, amount)
