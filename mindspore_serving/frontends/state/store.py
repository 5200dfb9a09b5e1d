"""The database of one server, on a thread of its own, so that the event loop never waits for disk.

Without a directory it is in memory, and ends with the server.  A directory has one server at a
time; a database of PostgreSQL has several.
"""

import asyncio
import fcntl
import os
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from mindspore_serving import log
from mindspore_serving.aio import function_thread, on_thread
from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.errors import Code, Overloaded, ServingError, StartError, Temporary, reason
from mindspore_serving.frontends.state.database import Database
from mindspore_serving.frontends.state.dialects import (
    SQLITE,
    VERSION,
    is_url,
    postgres,
    redacted,
)
from mindspore_serving.frontends.state.reserve import DiskReserve

T = TypeVar("T")

DAY = 86_400  # seconds
_THREAD = "state"
_RETRY_SECONDS = 5.0
FILE, LOCK = "state.sqlite3", "lock"


class StorageFull(Overloaded):
    """No room on the disk of the state's directory."""


class StateLost(Temporary):
    """No connection to the database of several servers, for now."""

    code = Code.SERVABLE_UNAVAILABLE


class StateStore:
    """Runs work on the database, one piece at a time, in the order of the calls.

    `where` is a directory, a URL of PostgreSQL, or "" for memory.  Raises StartError if it cannot
    be used, or another server uses the directory.
    """

    def __init__(self, where: str = "") -> None:
        self.where = redacted(where)
        self.holder = secrets.token_hex(8)  # of claims
        self._dialect = postgres() if is_url(where) else SQLITE
        self._closing = ExitStack()
        self._is_closed = False
        self._database: Database | None = None  # in memory: opened at the first use
        self._reserve: DiskReserve | None = None
        if where:
            try:
                self._database = self._open(where)
            except (OSError, self._dialect.error) as error:
                self._closing.close()
                text = f"the state of --state {self.where!r} cannot be used: {reason(error)}"
                raise StartError(f"Serving Error: {text}") from None

    @property
    def is_durable(self) -> bool:
        """True if records survive the server."""
        return bool(self.where)

    @property
    def is_shared(self) -> bool:
        """True if other servers may use the same database."""
        return self._dialect.is_shared

    def _open(self, where: str) -> Database:
        if not self.is_shared:
            where = self._lock(where)
            self._reserve = DiskReserve(os.path.dirname(where))
        database = Database(where, self._dialect)
        if database.version != VERSION:
            database.close()
            text = f"{redacted(where)} has version {database.version}, expected {VERSION}"
            raise OSError(f"{text}: another version of this package wrote it")
        if self._reserve is not None:
            try:
                self._reserve.make()
            except OSError as error:
                log.warning("state can only be removed, not added: %s", reason(error))
                self._reserve.spend(database)
        return database

    def _lock(self, directory: str) -> str:
        """Let only this server use a directory; return the path of the file in it."""
        os.makedirs(directory, mode=0o700, exist_ok=True)
        lock = os.open(os.path.join(directory, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._closing.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = "another server uses it; give each server a directory of its own"
            raise OSError(text) from None
        path = os.path.join(directory, FILE)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # only this user reads it
        return path

    async def run(self, work: Callable[[Database], T]) -> T:
        """Return the result of `work`, which runs in one transaction.

        Raises StorageFull, ServingError if the database fails, and what `work` raises.
        """
        return await on_thread(_THREAD, self._run, work)

    def post(self, work: Callable[[Database], object]) -> None:
        """Let `work` run later, before that of later calls; an error is logged.

        Has no effect after `close`.
        """
        if self._is_closed:
            return
        future = function_thread(_THREAD).submit(self._run, work)
        future.add_done_callback(_log_failure)

    async def expire(self) -> None:
        """Remove records whose time is over, and give the room back."""
        while await self.run(lambda database: database.expire(int(time.time()))):
            pass
        if self._database is not None:
            await on_thread(_THREAD, self._database.shrink)

    async def close(self) -> None:
        """Close the database after all work that waits."""
        self._is_closed = True
        await on_thread(_THREAD, self._close)

    def _close(self) -> None:
        if self._database is not None:
            with suppress(self._dialect.error):
                self._database.close()
        self._closing.close()

    def _run(self, work: Callable[[Database], T]) -> T:
        try:
            if self._database is None:
                self._database = Database(":memory:")
            return self._transact(self._database, work)
        except self._dialect.error as error:
            where = self.where or "memory"
            if self._dialect.is_full(error):
                text = f"there is no room for more state in {where}: remove files, or make room"
                raise StorageFull(text) from None
            if isinstance(error, self._dialect.lost):
                log.error("the database of %r cannot be reached: %s", where, reason(error))
                text = "the database of the server's state cannot be reached: try again"
                raise StateLost(text, _RETRY_SECONDS) from None
            log.error("the database of %r failed", where, exc_info=True)
            raise ServingError("the state of the server could not be read or written") from error

    def _transact(self, database: Database, work: Callable[[Database], T]) -> T:
        """Run `work`; on a full disk again with the reserve, which lets removals succeed."""
        reserve = self._reserve
        try:
            with database.transaction():
                result = work(database)
        except self._dialect.error as error:
            if reserve is None or reserve.is_spent or not self._dialect.is_full(error):
                raise
            reserve.spend(database)
            with database.transaction():
                result = work(database)
        if reserve is not None and reserve.is_spent:
            reserve.fill(database)
        return result


def expiry(limits: LanguageLimits, now: float) -> int:
    """Return the time at which what is stored now is removed."""
    return int(now) + limits.max_stored_days * DAY


def _log_failure(done: "asyncio.Future[Any]") -> None:
    if not done.cancelled() and (error := done.exception()):
        log.error("state could not be stored: %s", error)
