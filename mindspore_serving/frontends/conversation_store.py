"""Conversations: items that clients and responses add one after another, kept as responses are.

An item is a JSON object with an `id`, which is unique in its conversation.  Knows no protocol.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.errors import NoRoute, TooLarge
from mindspore_serving.frontends.response_store import find_record, keep_limits
from mindspore_serving.frontends.state.database import Database, Piece, Record
from mindspore_serving.frontends.state.files import new_id
from mindspore_serving.frontends.state.store import StateStore, expiry

KIND = "conversation"
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class ConversationBody(msgspec.Struct):
    """Body of a conversation's record."""

    metadata: dict[str, str]


decode_body = msgspec.json.Decoder(ConversationBody).decode


class NewItem(msgspec.Struct):
    """An item to add: its fields as JSON, and its id, or the prefix of one to be made."""

    fields: dict[str, msgspec.Raw]
    name: str
    prefix: str


class ConversationStore:
    """Conversations of all owners.  Methods raise NoRoute if `owner` has none of that name.

    Over a limit, the conversations of the same owner that were not changed for longest are removed.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store

    async def create(
        self, owner: str, metadata: dict[str, str], items: Sequence[NewItem], limits: LanguageLimits
    ) -> Record:
        """Store a new conversation.  Raises TooLarge."""
        now = int(time.time())
        body = _encode(ConversationBody(metadata))
        record = Record(new_id("conv_"), KIND, owner, now, body, expiry(limits, now))

        def create(database: Database) -> Record:
            database.add(record)
            _add(database, record, items, limits.max_stored_bytes)
            keep_limits(database, KIND, owner, limits)
            return record

        return await self._store.run(create)

    async def find(self, owner: str, name: str) -> Record:
        """Return the record of a conversation."""
        return await self._with(owner, name, lambda _, record: record)

    async def items(self, owner: str, name: str) -> tuple[bytes, ...]:
        """Return all items of a conversation, the oldest first."""

        def read(database: Database, record: Record) -> tuple[bytes, ...]:
            pieces = database.pieces(name, max_bytes=record.size + 1)
            return tuple(piece.data for piece in pieces)

        return await self._with(owner, name, read)

    async def item(self, owner: str, name: str, item: str) -> bytes:
        """Return an item of a conversation."""
        return await self._with(owner, name, lambda db, _: _find(db, name, item).data)

    async def update(self, owner: str, name: str, metadata: dict[str, str]) -> Record:
        """Replace the metadata of a conversation."""

        def update(database: Database, _: Record) -> Record:
            database.replace(name, _encode(ConversationBody(metadata)), is_open=False)
            return database.find(KIND, owner, name) or _

        return await self._with(owner, name, update)

    async def add(
        self, owner: str, name: str, items: Sequence[NewItem], limits: LanguageLimits
    ) -> list[bytes]:
        """Add items to a conversation and return them.  Raises TooLarge."""

        def add(database: Database, record: Record) -> list[bytes]:
            added = _add(database, record, items, limits.max_stored_bytes)
            _renew(database, record, limits)
            return added

        return await self._with(owner, name, add)

    def post(self, owner: str, name: str, items: Sequence[NewItem], limits: LanguageLimits) -> None:
        """Add the items of a response to a conversation, if it exists; later calls know them."""

        def add(database: Database) -> None:
            record = find_record(database, KIND, owner, name)
            if record is not None:
                _add(database, record, items, None)
                _renew(database, record, limits)

        self._store.post(add)

    async def remove_item(self, owner: str, name: str, item: str) -> Record:
        """Remove an item from a conversation."""

        def remove(database: Database, record: Record) -> Record:
            database.remove_piece(name, _find(database, name, item).number)
            return record

        return await self._with(owner, name, remove)

    async def remove(self, owner: str, name: str) -> None:
        """Remove a conversation."""
        await self._with(owner, name, lambda database, _: database.remove(name))

    async def _with(self, owner: str, name: str, work: Callable[[Database, Record], T]) -> T:
        def run(database: Database) -> T:
            record = find_record(database, KIND, owner, name)
            if record is None:
                text = f"there is no conversation {name!r}: it was deleted, has expired, or never"
                raise NoRoute(f"{text} existed")
            return work(database, record)

        return await self._store.run(run)


def _find(database: Database, name: str, item: str) -> Piece:
    piece = database.find_piece(name, item.encode())
    if piece is None:
        raise NoRoute(f"there is no item {item!r} in the conversation {name!r}")
    return piece


def _add(
    database: Database, record: Record, items: Sequence[NewItem], max_bytes: int | None
) -> list[bytes]:
    """Add items behind the last; those without an id, or with one that is taken, get a new one."""
    first, names = database.next_number(record.id), set()
    pieces = []
    for number, item in enumerate(items, first):
        name = item.name
        if not name or name in names or database.find_piece(record.id, name.encode()):
            name = new_id(f"{item.prefix}_")
        names.add(name)
        data = _encode({**item.fields, "id": name})
        pieces.append(Piece(number, data, name.encode()))
    size = record.size + sum(len(piece.data) for piece in pieces)
    if max_bytes is not None and size > max_bytes:
        raise TooLarge(
            f"the conversation would have {size} bytes, which is over the limit of {max_bytes} "
            "(--limit max_stored_bytes=BYTES): delete items, or start a new one"
        )
    database.add_pieces(record.id, pieces)
    return [piece.data for piece in pieces]


def _renew(database: Database, record: Record, limits: LanguageLimits) -> None:
    database.renew(record.id, expiry(limits, time.time()))
    keep_limits(database, KIND, record.owner, limits)
