"""Stored responses, which clients can retrieve or continue.

They are kept in the state of the server, within limits for each API key; no key sees those of
another.  Knows no sockets and no models.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.frontends.state.claims import CLAIM_SECONDS
from mindspore_serving.frontends.state.database import Database, PageRequest, Piece, Record
from mindspore_serving.frontends.state.store import StateStore, expiry

KIND = "response"
INPUT, OUTPUT, EVENT = b"input", b"output", b"event"  # keys of pieces
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as JSON, its items as JSON, and the events of its stream if it ran in background.

    `input` has the items of its own input after those of the responses that it continues.
    """

    body: bytes
    input: tuple[bytes, ...]
    output: tuple[bytes, ...]
    events: tuple[bytes, ...] = ()

    @property
    def conversation(self) -> tuple[bytes, ...]:
        """Items of a response that continues this one, before its own input."""
        return (*self.input, *self.output)

    def to_pieces(self) -> list[Piece]:
        """Return the pieces of its record."""
        parts = ((INPUT, self.input), (OUTPUT, self.output), (EVENT, self.events))
        keyed = [(key, data) for key, items in parts for data in items]
        return [Piece(number, data, key) for number, (key, data) in enumerate(keyed)]


def to_stored(response: object, output: Sequence[object], items: Sequence[bytes]) -> StoredResponse:
    """Encode a response and the items of its output; `items` are those of its input, encoded."""
    return StoredResponse(_encode(response), tuple(items), tuple(map(_encode, output)))


class ResponseStore:
    """Responses by owner and id.  Over a limit, the oldest of the same owner are removed."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def add(
        self,
        owner: str,
        name: str,
        response: StoredResponse,
        limits: LanguageLimits,
        *,
        is_open: bool = False,
    ) -> None:
        """Add a response, or replace it; later calls know it.  It may be unfinished (`is_open`)."""
        now = int(time.time())
        expires = expiry(limits, now)
        record = Record(name, KIND, owner, now, response.body, expires, is_open=is_open)

        def add(database: Database) -> None:
            if is_open:
                database.claim(name, self._store.holder, CLAIM_SECONDS)
            else:
                database.release(name, self._store.holder)
            database.remove(name)
            database.add(record, response.to_pieces())
            keep_limits(database, KIND, owner, limits)

        self._store.post(add)

    async def find(self, owner: str, name: str) -> StoredResponse | None:
        """Return a response of `owner`."""

        def find(database: Database) -> StoredResponse | None:
            record = find_record(database, KIND, owner, name)
            if record is None:
                return None
            pieces = database.pieces(name, max_bytes=record.size + 1)
            parts = (
                tuple(piece.data for piece in pieces if piece.key == key)
                for key in (INPUT, OUTPUT, EVENT)
            )
            return StoredResponse(record.body, *parts)

        return await self._store.run(find)

    async def remove(self, name: str) -> None:
        """Remove a response that exists."""
        await self._store.run(lambda database: database.remove(name))

    def renew(self, name: str) -> None:
        """Claim an unfinished response for longer."""
        self._store.post(lambda db: db.claim(name, self._store.holder, CLAIM_SECONDS))

    def fail_interrupted(self) -> None:
        """Let the responses be failed that a server was computing which has ended."""
        sweeper = f"sweeper of {self._store.holder}"

        def fail(database: Database) -> None:
            for record in database.list_open((KIND,)):
                if not database.claim(record.id, sweeper, 0):
                    continue  # a server computes it
                body: dict[str, Any] = msgspec.json.decode(record.body)
                error = {"code": "server_error", "message": "the server ended before the response"}
                body |= {"status": "failed", "error": error}
                database.replace(record.id, _encode(body), is_open=False)
                database.release(record.id, sweeper)

        self._store.post(fail)


def find_record(database: Database, kind: str, owner: str, name: str) -> Record | None:
    """Return a record of `owner`, unless its time is over."""
    record = database.find(kind, owner, name)
    if record is None or record.is_open or record.expires is None:
        return record
    return record if time.time() < record.expires else None


def keep_limits(database: Database, kind: str, owner: str, limits: LanguageLimits) -> None:
    """Remove the oldest records of `owner` that are over a limit, and what has expired."""
    database.expire(int(time.time()))
    while True:
        count, size = database.usage(owner, (kind,))
        if count <= limits.max_stored and size <= limits.max_stored_bytes:
            return
        oldest = database.page(kind, owner, PageRequest(1, is_ascending=True))
        database.remove(oldest[0].id)
