"""Whether the files of a servable version have changed: their names, sizes and times."""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias

from mindspore_serving.servable.loader import CONFIG_FILE

Fingerprint: TypeAlias = frozenset[tuple[str, int, int]]  # path, bytes, nanoseconds

_CACHE = "__pycache__"


def fingerprint(servable_directory: str, servable_name: str, version: int) -> Fingerprint:
    """Of all that a worker of this version reads: Python code, and every file of the version's
    directory; of a language model's directory every file, or itself if it is one.  Code may write
    beside those.
    """
    root = os.path.join(servable_directory, servable_name)
    if os.path.isfile(root):  # a model file that is a servable
        status = os.stat(root)
        return frozenset({(servable_name, status.st_size, status.st_mtime_ns)})
    own = os.path.join(root, str(version))
    is_bare = not os.path.isdir(own) and not os.path.isfile(os.path.join(root, CONFIG_FILE))
    found = []
    for entry in _files(root, own):
        if is_bare or entry.name.endswith(".py") or entry.path.startswith(own + os.sep):
            with suppress(OSError):  # it has just been removed
                status = entry.stat()  # not of other files: a directory may hold data of many
                path = os.path.relpath(entry.path, root)
                found.append((path, status.st_size, status.st_mtime_ns))
    return frozenset(found)


def _files(directory: str, own: str) -> Iterator["os.DirEntry[str]"]:
    """The files in `directory`, without those of other versions.  Of links to directories, which
    may go in circles, only that of the version is followed.
    """
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:  # it has just been removed
        return
    for entry in entries:
        is_other_version = entry.name.isdecimal() and entry.path != own
        try:
            if entry.is_dir() and (entry.path == own or not entry.is_symlink()):
                if entry.name != _CACHE and not is_other_version:
                    yield from _files(entry.path, own)
            elif entry.is_file():
                yield entry
        except OSError:
            continue
