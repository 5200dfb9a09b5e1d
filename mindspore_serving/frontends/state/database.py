"""Records and their pieces in a database, SQLite or PostgreSQL.

A record is a JSON body with a kind and an owner; its pieces are numbered bytes, such as the parts
of a file, the lines of a batch or the items of a response.  Knows no protocol, no limit and no
clock.  Blocking: `StateStore` calls it on a thread of its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from mindspore_serving.frontends.state.dialects import SQLITE, SqlDialect

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
    """The tables of `where`: a file of SQLite, ":memory:" for none, or a URL of PostgreSQL.

    Raises `dialect.error`.
    """

    def __init__(self, where: str, dialect: SqlDialect = SQLITE) -> None:
        self.dialect = dialect
        self._where = where
        self._connection = dialect.connect(where)
        self.version: int = self._execute(dialect.version).fetchone()[0]

    def close(self) -> None:
        self._connection.close()

    def limit_pages(self, count: int | None) -> int:
        """Let the file of SQLite have at most `count` pages, if it is set; return the limit."""
        value = "" if count is None else f" = {count}"
        limit: int = self._execute(f"PRAGMA max_page_count{value}").fetchone()[0]
        return limit

    def compact(self) -> None:
        """Write SQLite's log into its file, and give free pages back to the file system."""
        self.shrink()
        self._execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold a transaction, which is undone if the block raises."""
        self._begin()
        try:
            yield
            self._execute("COMMIT")
        except BaseException:
            with suppress(*self.dialect.lost):  # the connection may be what failed
                if self.dialect.in_transaction(self._connection):  # SQLite undoes some itself
                    self._execute("ROLLBACK")
            raise

    def _begin(self) -> None:
        """Begin a transaction; a connection that was lost since the last one is made again."""
        try:
            self._lock()
        except self.dialect.lost:
            with suppress(*self.dialect.lost):
                self._connection.close()
            self._connection = self.dialect.connect(self._where)
            self._lock()

    def _lock(self) -> None:
        for statement in self.dialect.lock:
            self._execute(statement)

    def _execute(self, statement: str, values: Sequence[object] = ()) -> Any:
        """Run a statement, with a question mark for each value; return its cursor."""
        return self._connection.execute(statement.replace("?", self.dialect.mark), values)

    # --- claims ----------------------------------------------------------------------------------

    def claim(self, name: str, holder: str, seconds: int) -> bool:
        """Claim a piece of work for a server, for `seconds` from now; renew a claim that it has.

        Returns False if another server has claimed it.  A database of one server has no claims.
        """
        if not self.dialect.is_shared:
            return True
        now = self.dialect.now
        rows = self._execute(
            f"INSERT INTO claims VALUES (?, ?, {now} + ?) ON CONFLICT (name) DO UPDATE "
            "SET holder = excluded.holder, until = excluded.until "
            f"WHERE claims.holder = excluded.holder OR claims.until < {now}",
            (name, holder, seconds),
        )
        return bool(rows.rowcount)

    def release(self, name: str, holder: str) -> None:
        """Release what `claim` claimed."""
        if self.dialect.is_shared:
            self._execute("DELETE FROM claims WHERE name = ? AND holder = ?", (name, holder))

    # --- records ---------------------------------------------------------------------------------

    def add(self, record: Record, pieces: Iterable[Piece] = ()) -> None:
        """Add a record with a new id."""
        self._execute(
            f"INSERT INTO records ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                record.id, record.kind, record.owner, record.created, record.expires,
                len(record.body), int(record.is_open), record.body,
            ),
        )  # fmt: skip
        self.add_pieces(record.id, pieces)

    def find(self, kind: str, owner: str, name: str) -> Record | None:
        """Return the record of `owner` with the id `name`."""
        if "\0" in name:  # which PostgreSQL refuses
            return None
        rows = self._select("kind = ? AND owner = ? AND id = ?", (kind, owner, name))
        return rows[0] if rows else None

    def page(self, kind: str, owner: str, page: PageRequest) -> Sequence[Record]:
        """Return records of `owner` by age, the newest first unless `page` is ascending."""
        if "\0" in page.after:
            return []
        sign, order = (">", "ASC") if page.is_ascending else ("<", "DESC")
        where, values = "owner = ? AND kind = ?", [owner, kind]
        if page.after:
            where += f" AND sequence {sign} (SELECT sequence FROM records WHERE id = ?)"
            values.append(page.after)
        return self._select(f"{where} ORDER BY sequence {order} LIMIT ?", (*values, page.limit))

    def list_open(self, kinds: Sequence[str]) -> Sequence[Record]:
        """Return the unfinished records of all owners, the oldest first."""
        marks = ", ".join("?" * len(kinds))
        return self._select(f"kind IN ({marks}) AND is_open <> 0 ORDER BY sequence", kinds)

    def replace(self, name: str, body: bytes, *, is_open: bool) -> None:
        """Replace the body of the record `name`."""
        self._execute(
            "UPDATE records SET size = size + ? - length(body), body = ?, is_open = ? WHERE id = ?",
            (len(body), body, int(is_open), name),
        )

    def set_expiry(self, name: str, expires: int | None) -> None:
        """Let the record `name` end at `expires`."""
        self._execute("UPDATE records SET expires = ? WHERE id = ?", (expires, name))

    def renew(self, name: str, expires: int | None) -> None:
        """Let the record `name` be the newest of its kind, and end at `expires`."""
        self._execute(
            f"UPDATE records SET sequence = {self.dialect.next_sequence}, expires = ? WHERE id = ?",
            (expires, name),
        )

    def remove(self, *names: str) -> None:
        """Remove records and their pieces."""
        for name in names:
            self._execute("DELETE FROM pieces WHERE record = ?", (name,))
            self._execute("DELETE FROM records WHERE id = ?", (name,))

    def usage(self, owner: str, kinds: Sequence[str]) -> tuple[int, int]:
        """Return the number of records of `owner` of these kinds, and their bytes."""
        marks = ", ".join("?" * len(kinds))
        count, size = self._execute(
            "SELECT count(*), CAST(coalesce(sum(size), 0) AS BIGINT) FROM records "
            f"WHERE owner = ? AND kind IN ({marks})",
            (owner, *kinds),
        ).fetchone()
        return count, size

    def expire(self, now: int) -> int:
        """Remove records whose time is over, but no unfinished ones; return their number."""
        rows = self._execute(
            "SELECT id FROM records WHERE expires <= ? AND is_open = 0 LIMIT 100", (now,)
        ).fetchall()
        self.remove(*(name for (name,) in rows))
        if self.dialect.is_shared:
            self._execute(f"DELETE FROM claims WHERE until < {self.dialect.now} - 3600")
        return len(rows)

    def shrink(self) -> None:
        """Give free pages back to the file system, outside of a transaction."""
        if self.dialect.shrink:
            self._execute(self.dialect.shrink).fetchall()

    def _select(self, where: str, values: Sequence[object]) -> list[Record]:
        rows = self._execute(f"SELECT {_COLUMNS} FROM records WHERE {where}", values)
        return [
            Record(name, kind, owner, created, body, expires, size, bool(is_open))
            for name, kind, owner, created, expires, size, is_open, body in rows
        ]

    # --- pieces ----------------------------------------------------------------------------------

    def add_pieces(self, name: str, pieces: Iterable[Piece]) -> None:
        """Add pieces with new numbers to the record `name`."""
        rows = [(name, piece.number, piece.key, piece.data) for piece in pieces]
        insert = "INSERT INTO pieces VALUES (?, ?, ?, ?)".replace("?", self.dialect.mark)
        self._connection.cursor().executemany(insert, rows)
        self._resize(name, sum(len(row[3]) for row in rows))

    def remove_piece(self, name: str, number: int) -> bool:
        """Remove a piece; return whether it was there."""
        rows = self._execute(
            "DELETE FROM pieces WHERE record = ? AND number = ? RETURNING length(data)",
            (name, number),
        ).fetchall()
        self._resize(name, -sum(size for (size,) in rows))
        return bool(rows)

    def clear_pieces(self, name: str) -> None:
        """Remove all pieces of the record `name`."""
        self._execute("DELETE FROM pieces WHERE record = ?", (name,))
        self._execute("UPDATE records SET size = length(body) WHERE id = ?", (name,))

    def pieces(self, name: str, after: int = -1, max_bytes: int = 1 << 20) -> Sequence[Piece]:
        """Return pieces whose number is over `after`, in order, until they have `max_bytes`."""
        rows = self._execute(
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
        row = self._execute(
            "SELECT number, data, key FROM pieces WHERE record = ? AND key = ? ORDER BY number",
            (name, key),
        ).fetchone()
        return Piece(*row) if row else None

    def next_number(self, name: str) -> int:
        """Return the number behind the last piece of the record `name`."""
        query = "SELECT coalesce(max(number) + 1, 0) FROM pieces WHERE record = ?"
        number: int = self._execute(query, (name,)).fetchone()[0]
        return number

    def pieces_by_key(self, name: str, after: Piece | None, limit: int) -> Sequence[Piece]:
        """Return pieces behind `after`, in order of key and number."""
        key, number = (after.key, after.number) if after else (b"", -1)
        rows = self._execute(
            "SELECT number, data, key FROM pieces WHERE record = ? AND (key, number) > (?, ?) "
            "ORDER BY key, number LIMIT ?",
            (name, key, number, limit),
        )
        return [Piece(*row) for row in rows]

    def _resize(self, name: str, change: int) -> None:
        self._execute("UPDATE records SET size = size + ? WHERE id = ?", (change, name))
