"""Files that are read anew when they have changed.  Knows not what is in them.

A change is acted on when two looks in turn have found the same: files that belong together are
rarely replaced at once, and a file may be half written.
"""

import os
import stat
from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

from mindspore_serving import log
from mindspore_serving.errors import ServingError

LOOK_SECONDS = 2.0  # between two looks

T = TypeVar("T")
Sight: TypeAlias = tuple[tuple[int, ...] | str, ...]


class Watched(Generic[T]):
    """The files `paths`, which are `what`.  `value` is what `read` made of them, and `use` is
    called with a new one.
    """

    use: Callable[[T], None]

    def __init__(self, what: str, paths: Sequence[str], read: Callable[[], T]) -> None:
        """Raises what `read` does."""
        self.paths = paths
        self._name = f"{what} of {', '.join(paths)}"
        self._read = read
        self._seen = _look(paths)  # before they are read: what changes meanwhile is seen
        self._is_settled = True
        self.value = self._found = read()
        self.num_renewed = self.num_failed = 0

    def look(self) -> None:
        """Read the files if they have changed.  May wait for a disk."""
        sight = _look(self.paths)
        if sight != self._seen:
            self._seen, self._is_settled = sight, False
        elif not self._is_settled:
            failure: Exception | None = None
            try:
                found = self._read()
            except (ServingError, OSError, ValueError) as error:
                failure = error
            self._is_settled = _look(self.paths) == sight
            if self._is_settled and failure is not None:
                self._refuse(failure)
            elif self._is_settled:
                self._found = found

    def renew(self) -> bool:
        """Use what was found, if it is new; whether it is."""
        if self._found == self.value:
            return False
        try:
            self.use(self._found)
        except (ServingError, OSError) as error:  # no descriptors, say: it is tried again
            self._refuse(error)
            return False
        self.value = self._found
        self.num_renewed += 1
        return True

    def tell(self) -> None:
        """Say that what is new is in use everywhere."""
        log.info("%s were read anew and are in use", self._name)

    def _refuse(self, error: Exception) -> None:
        self.num_failed += 1
        log.error(
            "%s have changed and cannot be used: %s.  What was read before stays in use: put right "
            "files there, they are read without a restart",
            self._name,
            error,
        )


def _look(paths: Sequence[str]) -> Sight:
    """What differs after a change, also of a link in a path."""
    return tuple(map(_look_at, paths))


def _look_at(path: str) -> tuple[int, ...] | str:
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        return str(error)
    if not stat.S_ISREG(found.st_mode):
        return "a pipe, which can be read once"
    times = found.st_mtime_ns, found.st_ctime_ns
    return (found.st_dev, found.st_ino, found.st_mode, found.st_size, *times)
