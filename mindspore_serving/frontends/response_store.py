"""Stored responses, which clients can retrieve or continue.

They are kept in memory, within limits for each API key; no key sees those of another.  Knows no
sockets and no models.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from mindspore_serving.core.language_limits import LanguageLimits

_OVERHEAD = 128  # bytes of an object besides its content
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as JSON, and its items as JSON.

    `input` has the items of its own input after those of the responses that it continues.
    """

    body: bytes
    input: tuple[bytes, ...]
    output: tuple[bytes, ...]

    @property
    def conversation(self) -> tuple[bytes, ...]:
        """Items of a response that continues this one, before its own input."""
        return (*self.input, *self.output)

    @property
    def num_bytes(self) -> int:
        """Upper bound of the bytes in memory: items that responses share count in each."""
        parts = (self.body, *self.conversation)
        return sum(map(len, parts)) + _OVERHEAD * len(parts)


def to_stored(response: object, output: Sequence[object], items: Sequence[bytes]) -> StoredResponse:
    """Encode a response and the items of its output; `items` are those of its input, encoded."""
    return StoredResponse(_encode(response), tuple(items), tuple(map(_encode, output)))


class _OwnerResponses:
    """Responses of one owner, the oldest first."""

    def __init__(self) -> None:
        self.responses: dict[str, StoredResponse] = {}
        self.num_bytes = 0

    def add(self, name: str, response: StoredResponse) -> None:
        self.responses[name] = response
        self.num_bytes += response.num_bytes

    def remove(self, name: str) -> None:
        self.num_bytes -= self.responses.pop(name).num_bytes


class ResponseStore:
    """Responses by owner and id.  Over a limit, the oldest of the same owner are removed."""

    def __init__(self) -> None:
        self._owners: dict[str, _OwnerResponses] = {}

    def add(self, owner: str, name: str, response: StoredResponse, limits: LanguageLimits) -> None:
        stored = self._owners.setdefault(owner, _OwnerResponses())
        stored.add(name, response)
        max_bytes = limits.max_stored_bytes
        while len(stored.responses) > limits.max_stored or stored.num_bytes > max_bytes:
            stored.remove(next(iter(stored.responses)))

    def find(self, owner: str, name: str) -> StoredResponse | None:
        stored = self._owners.get(owner)
        return stored.responses.get(name) if stored else None

    def remove(self, owner: str, name: str) -> None:
        """Remove a response that exists."""
        self._owners[owner].remove(name)
