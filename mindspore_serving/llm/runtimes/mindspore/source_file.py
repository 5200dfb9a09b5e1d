"""Sources of graphs as files, which MindSpore's compiler reads; it knows no graph.

A file is locked while its process lives, so that those of killed ones can be told and removed.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "mindspore-serving-graph-"


@contextmanager
def source_file(source: str) -> Iterator[str]:
    """Hold a file of `source` and return its path."""
    _remove_unlocked()
    descriptor, name = tempfile.mkstemp(prefix=PREFIX, suffix=".py")
    with open(descriptor, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            file.write(source)
            file.flush()
            yield name
        finally:  # before the lock ends: afterwards another process would remove the file too
            Path(name).unlink(missing_ok=True)


def _remove_unlocked() -> None:
    """Remove this user's files that no process locks."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*.py"):
        with suppress(OSError):  # locked, or removed meanwhile
            status = path.lstat()
            if status.st_uid == os.getuid() and status.st_size:  # an empty one is not locked yet
                with path.open() as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
