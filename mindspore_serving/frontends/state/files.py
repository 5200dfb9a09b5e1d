"""Files in the database: uploads of clients, and results of batches.  Knows no protocol."""

import secrets
from collections.abc import AsyncIterator

import msgspec

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.errors import NoRoute, Overloaded
from mindspore_serving.frontends.state.batch import KINDS as BATCHES
from mindspore_serving.frontends.state.database import Database, Piece, Record
from mindspore_serving.frontends.state.store import StateStore

KIND = "file"
COUNTED = (KIND, *BATCHES)  # kinds whose bytes the limit of files counts
_PIECE = 1 << 20  # bytes


class StoredFile(msgspec.Struct, kw_only=True):
    """Body of a file's record."""

    filename: str
    purpose: str
    size: int = 0


decode = msgspec.json.Decoder(StoredFile).decode
encode = msgspec.json.Encoder().encode


def new_id(prefix: str) -> str:
    """Return a new id of a record."""
    return f"{prefix}{secrets.token_hex(16)}"


def check_room(database: Database, owner: str, limits: LanguageLimits, new: int) -> None:
    """Raise Overloaded if `owner` may not store `new` bytes more."""
    _, size = database.usage(owner, COUNTED)
    if size + new > limits.max_files_bytes:
        raise Overloaded(
            f"files and batches have {size} bytes, and {new} more would be over the limit of "
            f"{limits.max_files_bytes} (--limit max_files_bytes=BYTES): delete some"
        )


def check_count(database: Database, owner: str, limits: LanguageLimits) -> None:
    """Raise Overloaded if `owner` may not store a further file or batch."""
    count, _ = database.usage(owner, COUNTED)
    if count >= limits.max_files:
        raise Overloaded(
            f"{count} files and batches are stored, which is the limit (--limit max_files=N): "
            "delete some"
        )


async def add_file(
    store: StateStore, record: Record, content: bytes, limits: LanguageLimits
) -> None:
    """Store a file, in pieces.  Raises Overloaded or StorageFull, and then keeps nothing of it."""

    def begin(database: Database) -> None:
        check_count(database, record.owner, limits)
        check_room(database, record.owner, limits, len(content))
        database.add(record)

    await store.run(begin)
    try:
        for number, start in enumerate(range(0, len(content), _PIECE)):
            piece = Piece(number, bytes(content[start : start + _PIECE]))
            await store.run(lambda database, piece=piece: database.add_pieces(record.id, [piece]))  # type: ignore[misc]
        await store.run(lambda database: database.replace(record.id, record.body, is_open=False))
    except BaseException:
        store.post(lambda database: database.remove(record.id))
        raise


async def find_file(store: StateStore, owner: str, name: str) -> Record:
    """Return the record of a complete file.  Raises NoRoute."""
    record = await store.run(lambda database: database.find(KIND, owner, name))
    if record is None or record.is_open:
        raise NoRoute(f"there is no file {name!r}: it was deleted, has expired, or never existed")
    return record


async def read_file(store: StateStore, name: str) -> AsyncIterator[bytes]:
    """Iterate over the bytes of a file."""
    after = -1
    while pieces := await store.run(lambda db: db.pieces(name, after)):  # noqa: B023
        yield b"".join(piece.data for piece in pieces)
        after = pieces[-1].number


def open_results(database: Database, owner: str, name: str, created: int) -> None:
    """Add the record of a batch's result file, which is hidden until the batch ends."""
    body = encode(StoredFile(filename=f"{name}.jsonl", purpose="batch_output"))
    database.add(Record(name, KIND, owner, created, body, is_open=True))


def close_results(database: Database, owner: str, name: str, expires: int | None) -> bool:
    """Complete a result file, or remove an empty one; return whether it has results."""
    record = database.find(KIND, owner, name)
    if record is None:
        return False
    size = record.size - len(record.body)
    if not size:
        database.remove(name)
        return False
    file = decode(record.body)
    file.size = size
    database.replace(name, encode(file), is_open=False)
    database.set_expiry(name, expires)
    return True
