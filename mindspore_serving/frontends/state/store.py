"""The database of one server, on a thread of its own, so that the event loop never waits for disk.

Without a directory it is in memory, and ends with the server.  A directory has one server at a
time.
"""

import asyncio
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

from mindspore_serving import log
from mindspore_serving.aio import function_thread, on_thread
from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.errors import Overloaded, ServingError, StartError, reason
from mindspore_serving.frontends.state.database import VERSION, Database

T = TypeVar("T")

DAY = 86_400  # seconds
_THREAD = "state"
FILE, LOCK = "state.sqlite3", "lock"
_FULL = "database or disk is full"


class StorageFull(Overloaded):
    """No room on the disk of the state's directory."""


class StateStore:
    """Runs work on the database, one piece at a time, in the order of the calls.

    Raises StartError if `directory` cannot be used, or another server uses it.
    """

    def __init__(self, directory: str = "") -> None:
        self.directory = directory
        self._closing = ExitStack()
        self._is_closed = False
        self._database: Database | None = None  # in memory: opened at the first use
        if directory:
            try:
                self._database = self._open(directory)
            except (OSError, sqlite3.Error) as error:
                self._closing.close()
                text = f"the directory of --state {directory!r} cannot be used: {reason(error)}"
                raise StartError(f"Serving Error: {text}") from None

    @property
    def is_durable(self) -> bool:
        """True if records survive the server."""
        return bool(self.directory)

    def _open(self, directory: str) -> Database:
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
        database = Database(path)
        if database.version != VERSION:
            database.close()
            text = f"{path} has version {database.version}, expected {VERSION}"
            raise OSError(f"{text}: another version of this package wrote it")
        return database

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
            self._database.close()
        self._closing.close()

    def _run(self, work: Callable[[Database], T]) -> T:
        try:
            if self._database is None:
                self._database = Database(":memory:")
            with self._database.transaction():
                return work(self._database)
        except sqlite3.Error as error:
            if _FULL in str(error):
                where = self.directory or "memory"
                text = f"there is no room for more state in {where}: remove files, or make room"
                raise StorageFull(text) from None
            log.error("the database of %r failed", self.directory, exc_info=True)
            raise ServingError("the state of the server could not be read or written") from error


def expiry(limits: LanguageLimits, now: float) -> int:
    """Return the time at which what is stored now is removed."""
    return int(now) + limits.max_stored_days * DAY


def _log_failure(done: "asyncio.Future[Any]") -> None:
    if not done.cancelled() and (error := done.exception()):
        log.error("state could not be stored: %s", error)
