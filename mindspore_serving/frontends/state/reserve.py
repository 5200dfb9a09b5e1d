"""Room that is kept on the disk of a database, so that records can be removed when it is full.

Without it SQLite could not even delete: its log of changes has to grow for that, and to be written
into the database first.  The log has 4 MiB and one transaction at most.
"""

import os
from contextlib import suppress

from mindspore_serving.frontends.state.database import Database

RESERVE_BYTES = 8 << 20
_NAME = "reserve"


class DiskReserve:
    """A file of RESERVE_BYTES in `directory`; while it is missing, the database does not grow."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, _NAME)
        self._limit: int | None = None  # of the database's pages, before it was held

    @property
    def is_spent(self) -> bool:
        """True if the room was given to the database."""
        return self._limit is not None

    def spend(self, database: Database) -> None:
        """Give the room to the database, and let its file not grow."""
        self._limit = database.limit_pages(None)
        with suppress(OSError):
            os.unlink(self._path)
        with suppress(database.dialect.error):
            database.compact()
        database.limit_pages(1)  # which is never below its size

    def fill(self, database: Database) -> None:
        """Take the room back, if there is enough on the disk, and let the database grow again."""
        try:
            database.compact()
            self.make()
        except (OSError, database.dialect.error):
            return
        database.limit_pages(self._limit)
        self._limit = None

    def make(self) -> None:
        """Make the file.  Raises OSError, and then leaves none."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
        except OSError:
            os.unlink(self._path)
            raise
        finally:
            os.close(descriptor)
