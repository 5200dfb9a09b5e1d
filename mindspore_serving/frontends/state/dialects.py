"""The databases that keep state, one row each: how it is opened, and where its SQL differs.

PostgreSQL is shared by several servers: a lock makes their transactions follow one another, as
SQLite's do in one server.
"""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mindspore_serving.errors import StartError

_TABLES = """
CREATE TABLE records (
    sequence {sequence}, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
    owner TEXT NOT NULL, created BIGINT NOT NULL, expires BIGINT, size BIGINT NOT NULL,
    is_open INTEGER NOT NULL, body {bytes} NOT NULL);
CREATE INDEX records_of_owner ON records (owner, kind, sequence);
CREATE INDEX open_records ON records (kind) WHERE is_open <> 0;
CREATE INDEX expiring_records ON records (expires) WHERE expires IS NOT NULL;
CREATE TABLE pieces (
    record TEXT NOT NULL, number BIGINT NOT NULL, key {bytes} NOT NULL, data {bytes} NOT NULL,
    PRIMARY KEY (record, number));
CREATE INDEX pieces_by_key ON pieces (record, key, number);
"""
_CLAIMS = "CREATE TABLE claims (name TEXT PRIMARY KEY, holder TEXT NOT NULL, until BIGINT NOT NULL)"
_SCHEMA = "mindspore_serving"  # of PostgreSQL
_LOCK = 0x6D73706F7265  # any number that no other program takes
_SESSION = {  # milliseconds: a server that hangs does not block others for longer
    "search_path": _SCHEMA,
    "statement_timeout": 30_000,
    "lock_timeout": 15_000,
    "idle_in_transaction_session_timeout": 15_000,
}


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """A database: `connect(where)` opens it and makes its tables; `mark` stands for a value.

    `lock` begins a transaction that no other is beside.  With `is_shared` several servers use the
    database, and `claims` says which of them does a piece of work; `now` is its own clock, in
    seconds since 1970.  `lost` are errors of a connection that a new one may not have.
    """

    connect: Callable[[str], Any]
    version: str  # a statement
    lock: tuple[str, ...]
    in_transaction: Callable[[Any], bool]
    mark: str
    next_sequence: str
    now: str
    shrink: str
    error: type[Exception]
    is_full: Callable[[Exception], bool]
    is_shared: bool = False
    lost: tuple[type[Exception], ...] = ()


VERSION = 1  # of the tables


def is_url(where: str) -> bool:
    """Return whether `where` is the URL of a PostgreSQL database, not a directory."""
    return where.startswith(("postgresql://", "postgres://"))


def redacted(where: str) -> str:
    """Return `where` without the password and the options of a URL."""
    if "://" not in where:
        return where
    scheme, _, rest = where.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def _open_sqlite(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    execute = connection.execute
    if execute("PRAGMA user_version").fetchone()[0] == 0:
        execute("PRAGMA auto_vacuum = INCREMENTAL")
        tables = _TABLES.format(sequence="INTEGER PRIMARY KEY AUTOINCREMENT", bytes="BLOB")
        connection.executescript(f"{tables} PRAGMA user_version = {VERSION};")
    execute("PRAGMA journal_mode = WAL")
    execute("PRAGMA synchronous = NORMAL")
    return connection


SQLITE = SqlDialect(
    connect=_open_sqlite,
    version="PRAGMA user_version",
    lock=("BEGIN IMMEDIATE",),
    in_transaction=lambda connection: bool(connection.in_transaction),
    mark="?",
    next_sequence="(SELECT max(sequence) + 1 FROM records)",
    now="unixepoch()",
    shrink="PRAGMA incremental_vacuum(1000)",
    error=sqlite3.Error,
    is_full=lambda error: "database or disk is full" in str(error),
)


def postgres() -> SqlDialect:
    """Return the row of PostgreSQL.  Raises StartError if its library is not installed."""
    try:
        import psycopg
    except ModuleNotFoundError as error:
        from mindspore_serving import extras

        text = extras.missing(error, "--state with a URL of PostgreSQL")
        raise StartError(f"Serving Error: {text}") from None
    idle = psycopg.pq.TransactionStatus.IDLE
    return SqlDialect(
        connect=_open_postgres,
        version="SELECT version FROM state_version",
        lock=("BEGIN", f"SELECT pg_advisory_xact_lock({_LOCK})"),
        in_transaction=lambda connection: connection.info.transaction_status != idle,
        mark="%s",
        next_sequence="nextval(pg_get_serial_sequence('records', 'sequence'))",
        now="CAST(extract(epoch FROM clock_timestamp()) AS BIGINT)",
        shrink="",
        error=psycopg.Error,
        is_full=lambda error: isinstance(error, psycopg.errors.DiskFull),
        is_shared=True,
        lost=(psycopg.OperationalError,),
    )


def _open_postgres(url: str) -> Any:
    import psycopg

    options = " ".join(f"-c {name}={value}" for name, value in _SESSION.items())
    connection = psycopg.connect(
        url,
        autocommit=True,
        connect_timeout=10,
        options=options,
        application_name="mindspore-serving",
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
    )
    try:
        with connection.transaction():
            connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
            row = connection.execute(f"SELECT to_regclass('{_SCHEMA}.records')").fetchone()
            if row is None or row[0] is None:
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")
                identity = "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"
                connection.execute(_TABLES.format(sequence=identity, bytes="BYTEA"))
                connection.execute(f"{_CLAIMS}; CREATE TABLE state_version (version INTEGER)")
                connection.execute(f"INSERT INTO state_version VALUES ({VERSION})")
    except BaseException:
        connection.close()
        raise
    return connection
