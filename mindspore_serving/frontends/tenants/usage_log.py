"""Log of usage by key and servable, in rows of a minute: CSV, SQLite or PostgreSQL."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import astuple
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mindspore_serving.frontends.state.dialects import is_url
from mindspore_serving.frontends.tenants.line_file import RotatedFile
from mindspore_serving.frontends.tenants.usage import UsageCounts, UsageKey

SECONDS = 60.0
DATABASES = (".sqlite", ".sqlite3", ".db")
_TABLE = (
    "CREATE TABLE IF NOT EXISTS serving_usage (time TEXT NOT NULL, owner TEXT NOT NULL, "
    "key TEXT NOT NULL, servable TEXT NOT NULL, requests BIGINT, failed BIGINT, "
    "prompt_tokens BIGINT, generated_tokens BIGINT, instances BIGINT)"
)

Rows = Sequence[tuple[UsageKey, UsageCounts]]
WriteUsage = Callable[[Rows], None]


def writer_of(where: str) -> WriteUsage:
    """Return a function that appends rows to a CSV file, an SQLite file or PostgreSQL."""
    if is_url(where):
        import psycopg

        return _to_database(lambda: psycopg.connect(where, connect_timeout=10), "%s")
    if Path(where).suffix in DATABASES:
        import sqlite3

        return _to_database(lambda: sqlite3.connect(where, timeout=10), "?")
    file = RotatedFile(where)
    return lambda rows: file.write([_to_csv(rows)])


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _to_csv(rows: Rows) -> bytes:
    """Return lines of time, digest and name of the key, servable, and the counts."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerows((_now(), *key, *astuple(counts)) for key, counts in rows)
    return text.getvalue().encode()


def _to_database(connect: Callable[[], Any], mark: str) -> WriteUsage:
    marks = ", ".join([mark] * 9)

    def write(rows: Rows) -> None:
        connection = connect()  # once a minute: it may have been lost
        try:
            cursor = connection.cursor()
            cursor.execute(_TABLE)
            values = [(_now(), *key, *astuple(counts)) for key, counts in rows]
            cursor.executemany(f"INSERT INTO serving_usage VALUES ({marks})", values)
            connection.commit()
        finally:
            connection.close()

    return write
