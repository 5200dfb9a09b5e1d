"""Records and their pieces in SQLite.

A record is a JSON body with a kind and an owner; its pieces are numbered bytes, such as the parts
of a file, the lines of a batch or the items of a response.  Knows no protocol, no limit and no
clock.  Blocking: `StateStore` calls it on a thread of its own.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

VERSION = 1  # of the tables
_SCHEMA = """
CREATE TABLE records (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
    owner TEXT NOT NULL, created INTEGER NOT NULL, expires INTEGER, size INTEGER NOT NULL,
    is_open INTEGER NOT NULL, body BLOB NOT NULL);
CREATE INDEX records_of_owner ON records (owner, kind, sequence);
CREATE INDEX open_records ON records (kind) WHERE is_open;
CREATE INDEX expiring_records ON records (expires) WHERE expires IS NOT NULL;
CREATE TABLE pieces (
    record TEXT NOT NULL, number INTEGER NOT NULL, key BLOB NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (record, number));
CREATE INDEX pieces_by_key ON pieces (record, key, number);
"""
_COLUMNS = "id, kind, owner, created, expires, size, is_open, body"


@dataclass(frozen=True, slots=True)
class Record:
    """A record: times are seconds since 1970, `size` counts the body and the pieces, in bytes.

    `is_open` marks work that is not finished.
    """

    id: str
    kind: str
    owner: str
    created: int
    body: bytes
    expires: int | None = None
    size: int = 0
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a record; pieces are read in the order of `number`, or of `key` and `number`."""

    number: int
    data: bytes
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a part of a list: `limit` records behind the record `after`."""

    limit: int
    after: str = ""
    is_ascending: bool = False


class Database:
    """The tables in the file `path`, ":memory:" for none.  Raises sqlite3.Error."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        execute = self._connection.execute
        self.version = execute("PRAGMA user_version").fetchone()[0]
        if self.version == 0:
            execute("PRAGMA auto_vacuum = INCREMENTAL")
            self._connection.executescript(f"{_SCHEMA} PRAGMA user_version = {VERSION};")
            self.version = VERSION
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = NORMAL")

    def close(self) -> None:
        self._connection.close()

    def limit_pages(self, count: int) -> None:
        """Let the file have at most `count` pages."""
        self._connection.execute(f"PRAGMA max_page_count = {count}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold a transaction, which is undone if the block raises."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite undoes some itself
                self._connection.execute("ROLLBACK")
            raise

    # --- records ---------------------------------------------------------------------------------

    def add(self, record: Record, pieces: Iterable[Piece] = ()) -> None:
        """Add a record with a new id."""
        self._connection.execute(
            f"INSERT INTO records ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                record.id, record.kind, record.owner, record.created, record.expires,
                len(record.body), record.is_open, record.body,
            ),
        )  # fmt: skip
        self.add_pieces(record.id, pieces)

    def find(self, kind: str, owner: str, name: str) -> Record | None:
        """Return the record of `owner` with the id `name`."""
        rows = self._select("kind = ? AND owner = ? AND id = ?", (kind, owner, name))
        return rows[0] if rows else None

    def page(self, kind: str, owner: str, page: PageRequest) -> Sequence[Record]:
        """Return records of `owner` by age, the newest first unless `page` is ascending."""
        sign, order = (">", "ASC") if page.is_ascending else ("<", "DESC")
        where, values = "owner = ? AND kind = ?", [owner, kind]
        if page.after:
            where += f" AND sequence {sign} (SELECT sequence FROM records WHERE id = ?)"
            values.append(page.after)
        return self._select(f"{where} ORDER BY sequence {order} LIMIT ?", (*values, page.limit))

    def list_open(self, kinds: Sequence[str]) -> Sequence[Record]:
        """Return the unfinished records of all owners, the oldest first."""
        marks = ", ".join("?" * len(kinds))
        return self._select(f"kind IN ({marks}) AND is_open ORDER BY sequence", kinds)

    def replace(self, name: str, body: bytes, *, is_open: bool) -> None:
        """Replace the body of the record `name`."""
        self._connection.execute(
            "UPDATE records SET size = size + ? - length(body), body = ?, is_open = ? WHERE id = ?",
            (len(body), body, is_open, name),
        )

    def set_expiry(self, name: str, expires: int | None) -> None:
        """Let the record `name` end at `expires`."""
        self._connection.execute("UPDATE records SET expires = ? WHERE id = ?", (expires, name))

    def renew(self, name: str, expires: int | None) -> None:
        """Let the record `name` be the newest of its kind, and end at `expires`."""
        self._connection.execute(
            "UPDATE records SET sequence = (SELECT max(sequence) + 1 FROM records), expires = ? "
            "WHERE id = ?",
            (expires, name),
        )

    def remove(self, *names: str) -> None:
        """Remove records and their pieces."""
        for name in names:
            self._connection.execute("DELETE FROM pieces WHERE record = ?", (name,))
            self._connection.execute("DELETE FROM records WHERE id = ?", (name,))

    def usage(self, owner: str, kinds: Sequence[str]) -> tuple[int, int]:
        """Return the number of records of `owner` of these kinds, and their bytes."""
        marks = ", ".join("?" * len(kinds))
        count, size = self._connection.execute(
            "SELECT count(*), coalesce(sum(size), 0) FROM records "
            f"WHERE owner = ? AND kind IN ({marks})",
            (owner, *kinds),
        ).fetchone()
        return count, size

    def expire(self, now: int) -> int:
        """Remove records whose time is over, but no unfinished ones; return their number."""
        rows = self._connection.execute(
            "SELECT id FROM records WHERE expires <= ? AND NOT is_open LIMIT 100", (now,)
        ).fetchall()
        self.remove(*(name for (name,) in rows))
        return len(rows)

    def shrink(self) -> None:
        """Give free pages back to the file system, outside of a transaction."""
        self._connection.execute("PRAGMA incremental_vacuum(1000)").fetchall()

    def _select(self, where: str, values: Sequence[object]) -> list[Record]:
        rows = self._connection.execute(f"SELECT {_COLUMNS} FROM records WHERE {where}", values)
        return [
            Record(name, kind, owner, created, body, expires, size, bool(is_open))
            for name, kind, owner, created, expires, size, is_open, body in rows
        ]

    # --- pieces ----------------------------------------------------------------------------------

    def add_pieces(self, name: str, pieces: Iterable[Piece]) -> None:
        """Add pieces with new numbers to the record `name`."""
        rows = [(name, piece.number, piece.key, piece.data) for piece in pieces]
        self._connection.executemany("INSERT INTO pieces VALUES (?, ?, ?, ?)", rows)
        self._resize(name, sum(len(row[3]) for row in rows))

    def remove_piece(self, name: str, number: int) -> bool:
        """Remove a piece; return whether it was there."""
        rows = self._connection.execute(
            "DELETE FROM pieces WHERE record = ? AND number = ? RETURNING length(data)",
            (name, number),
        ).fetchall()
        self._resize(name, -sum(size for (size,) in rows))
        return bool(rows)

    def clear_pieces(self, name: str) -> None:
        """Remove all pieces of the record `name`."""
        self._connection.execute("DELETE FROM pieces WHERE record = ?", (name,))
        self._connection.execute("UPDATE records SET size = length(body) WHERE id = ?", (name,))

    def pieces(self, name: str, after: int = -1, max_bytes: int = 1 << 20) -> Sequence[Piece]:
        """Return pieces whose number is over `after`, in order, until they have `max_bytes`."""
        rows = self._connection.execute(
            "SELECT number, data, key FROM pieces WHERE record = ? AND number > ? ORDER BY number",
            (name, after),
        )
        pieces: list[Piece] = []
        for row in rows:
            pieces.append(Piece(*row))
            max_bytes -= len(pieces[-1].data)
            if max_bytes <= 0:
                break
        return pieces

    def find_piece(self, name: str, key: bytes) -> Piece | None:
        """Return the first piece of the record `name` with this key."""
        row = self._connection.execute(
            "SELECT number, data, key FROM pieces WHERE record = ? AND key = ? ORDER BY number",
            (name, key),
        ).fetchone()
        return Piece(*row) if row else None

    def next_number(self, name: str) -> int:
        """Return the number behind the last piece of the record `name`."""
        query = "SELECT coalesce(max(number) + 1, 0) FROM pieces WHERE record = ?"
        number: int = self._connection.execute(query, (name,)).fetchone()[0]
        return number

    def pieces_by_key(self, name: str, after: Piece | None, limit: int) -> Sequence[Piece]:
        """Return pieces behind `after`, in order of key and number."""
        key, number = (after.key, after.number) if after else (b"", -1)
        rows = self._connection.execute(
            "SELECT number, data, key FROM pieces WHERE record = ? AND (key, number) > (?, ?) "
            "ORDER BY key, number LIMIT ?",
            (name, key, number, limit),
        )
        return [Piece(*row) for row in rows]

    def _resize(self, name: str, change: int) -> None:
        self._connection.execute("UPDATE records SET size = size + ? WHERE id = ?", (change, name))
