"""Responses that clients may ask for again, or go on from.  In memory, and a bounded part of it for
each API key; no key sees what another has.  Knows no sockets and no models.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from mindspore_serving.core.language_limits import LanguageLimits

_OVERHEAD = 128  # bytes of an object besides its content
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as JSON, `body`; and as JSON the items of its input, with those of the responses
    that it goes on from, and of its output.
    """

    body: bytes
    given: tuple[bytes, ...]
    output: tuple[bytes, ...]

    @property
    def conversation(self) -> tuple[bytes, ...]:
        """What a response that goes on from it has before its own input."""
        return (*self.given, *self.output)

    @property
    def num_bytes(self) -> int:
        """An upper bound: items that responses share are counted in each."""
        held = (self.body, *self.conversation)
        return sum(map(len, held)) + _OVERHEAD * len(held)


def to_stored(whole: object, output: Sequence[object], given: Sequence[bytes]) -> StoredResponse:
    """Of a response as an object, the items of its output, and those of its input."""
    return StoredResponse(_encode(whole), tuple(given), tuple(map(_encode, output)))


class _Shelf:
    """The responses of one owner, the oldest first."""

    def __init__(self) -> None:
        self.responses: dict[str, StoredResponse] = {}
        self.num_bytes = 0

    def add(self, name: str, response: StoredResponse) -> None:
        self.responses[name] = response
        self.num_bytes += response.num_bytes

    def remove(self, name: str) -> None:
        self.num_bytes -= self.responses.pop(name).num_bytes


class ResponseStore:
    """Responses by owner and name.  Where there are too many, or too large ones, the oldest of the
    same owner are forgotten.
    """

    def __init__(self) -> None:
        self._shelves: dict[str, _Shelf] = {}

    def keep(self, owner: str, name: str, response: StoredResponse, limits: LanguageLimits) -> None:
        shelf = self._shelves.setdefault(owner, _Shelf())
        shelf.add(name, response)
        most, most_bytes = limits.max_stored, limits.max_stored_bytes
        while len(shelf.responses) > most or shelf.num_bytes > most_bytes:
            shelf.remove(next(iter(shelf.responses)))

    def find(self, owner: str, name: str) -> StoredResponse | None:
        shelf = self._shelves.get(owner)
        return shelf.responses.get(name) if shelf else None

    def forget(self, owner: str, name: str) -> None:
        """One that is there."""
        self._shelves[owner].remove(name)
