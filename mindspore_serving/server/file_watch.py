"""Files that are reloaded when they have changed.  Does not know their content.

A change takes effect once two polls in a row have seen the same state: files that belong together
are rarely replaced at the same time, and a file may be half written.
"""

import os
import stat
from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

from mindspore_serving import log
from mindspore_serving.errors import ServingError

POLL_SECONDS = 2.0

T = TypeVar("T")
FileState: TypeAlias = tuple[tuple[int, ...] | str, ...]


class WatchedFiles(Generic[T]):
    """Files that are read together.

        unchanged -(state differs)-> changed -(same state at the next poll)-> read -> `renew`

    `value` is the content in use; `use` is called with a new one.
    """

    use: Callable[[T], None]

    def __init__(self, title: str, paths: Sequence[str], read: Callable[[], T]) -> None:
        """Read the files; `title` names them in the log.  Raises the errors of `read`."""
        self.paths = paths
        self._name = f"{title} of {', '.join(paths)}"
        self._read = read
        self._seen = _states(paths)  # before reading, so that a change meanwhile is noticed
        self._is_settled = True
        self.value = self._latest = read()
        self.num_renewed = self.num_failed = 0

    def poll(self) -> None:
        """Read the files if they have changed.  Blocks on the disk."""
        states = _states(self.paths)
        if states != self._seen:
            self._seen, self._is_settled = states, False
        elif not self._is_settled:
            failure: Exception | None = None
            try:
                content = self._read()
            except (ServingError, OSError, ValueError) as error:
                failure = error
            self._is_settled = _states(self.paths) == states
            if self._is_settled and failure is not None:
                self._refuse(failure)
            elif self._is_settled:
                self._latest = content

    def renew(self) -> bool:
        """Use the latest content if it is new; return whether it is in use now."""
        if self._latest == self.value:
            return False
        try:
            self.use(self._latest)
        except (ServingError, OSError) as error:  # out of descriptors, say: retried at each poll
            self._refuse(error)
            return False
        self.value = self._latest
        self.num_renewed += 1
        return True

    def log_renewed(self) -> None:
        """Log that the new content is in use in all processes."""
        log.info("%s were reloaded and are in use", self._name)

    def _refuse(self, error: Exception) -> None:
        self.num_failed += 1
        log.error(
            "%s have changed and are invalid: %s.  The previous content stays in use: put valid "
            "files there, they are reloaded without a restart",
            self._name,
            error,
        )


def _states(paths: Sequence[str]) -> FileState:
    """Return the states of files, which differ after a change, also of a link in a path."""
    return tuple(map(_state, paths))


def _state(path: str) -> tuple[int, ...] | str:
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        return str(error)
    if not stat.S_ISREG(status.st_mode):
        return "a pipe, which can be read once"
    times = status.st_mtime_ns, status.st_ctime_ns
    return (status.st_dev, status.st_ino, status.st_mode, status.st_size, *times)
