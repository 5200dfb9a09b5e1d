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
    with tempfile.NamedTemporaryFile("w", prefix=PREFIX, suffix=".py") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(source)
        file.flush()
        yield file.name


def _remove_unlocked() -> None:
    """Remove this user's files that no process locks."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*.py"):
        with suppress(OSError):  # locked, or removed meanwhile
            status = path.lstat()
            if status.st_uid == os.getuid() and status.st_size:  # an empty one is not locked yet
                with path.open() as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
