"""Interface and options of stores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mindspore_serving.stores.bounds import StoreBounds


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of a store, as the operator has set them.

    Args:
        option: name of the option that has the URL; errors name it, and those that begin with it.
        url: of the store.
        max_bytes: of all values there.
        value_bytes: of the largest value.
        max_seconds: after its last use in which a value is kept; 0: no limit.
        timeout: seconds without an answer of the store, after which a call fails.
    """

    option: str
    url: str
    max_bytes: int
    value_bytes: int
    max_seconds: float
    timeout: float

    @property
    def bounds(self) -> StoreBounds:
        """Limits of the store, and what is left of them for its user."""
        return StoreBounds(self.max_bytes, self.value_bytes, self.max_seconds)


class ValueStore(Protocol):
    """Values by name, outside of this process.  Raises `errors`, and ends each call in time."""

    errors: tuple[type[Exception], ...]

    def get(self, name: str, max_bytes: int) -> bytes | bytearray | None:
        """Return a value, its first `max_bytes` at most, and mark it as used; None without it."""
        ...

    def has(self, name: str) -> bool:
        """Return whether there is a value."""
        ...

    def touch(self, name: str, at: int | None = None) -> None:
        """Mark a value as used, where that is possible."""
        ...

    def put(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """Write a value; it is there as a whole or not at all."""
        ...

    def remove(self, name: str) -> None:
        """Remove a value, if it is there."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
