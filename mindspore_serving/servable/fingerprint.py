"""Fingerprint of the files of a servable version: names, sizes and times."""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias

from mindspore_serving.servable.loader import CONFIG_FILE

Fingerprint: TypeAlias = frozenset[tuple[str, int, int]]  # path, bytes, nanoseconds

_CACHE = "__pycache__"
_SUFFIXES = (".py", ".pbtxt")  # of code, and of Triton's description


def fingerprint(servable_directory: str, servable_name: str, version: int) -> Fingerprint:
    """Return the fingerprint of the files that a worker of this version reads.

    They are Python code, config.pbtxt, and every file of the version's directory; every file of the
    directory of a language model; or a model file alone. User code may write other files beside
    them.
    """
    root = os.path.join(servable_directory, servable_name)
    if os.path.isfile(root):  # a model file that is a servable
        status = os.stat(root)
        return frozenset({(servable_name, status.st_size, status.st_mtime_ns)})
    version_directory = os.path.join(root, str(version))
    is_bare = not os.path.isdir(version_directory) and not os.path.isfile(
        os.path.join(root, CONFIG_FILE)
    )
    files = []
    for entry in _files(root, version_directory):
        if (
            is_bare
            or entry.name.endswith(_SUFFIXES)
            or entry.path.startswith(version_directory + os.sep)
        ):
            with suppress(OSError):  # it has just been removed
                status = entry.stat()  # of these files only
                path = os.path.relpath(entry.path, root)
                files.append((path, status.st_size, status.st_mtime_ns))
    return frozenset(files)


def _files(directory: str, version_directory: str) -> Iterator["os.DirEntry[str]"]:
    """Iterate over the files in `directory`, without those of other versions.

    Links to directories may be cyclic, so only a link that is the version's directory is followed.
    """
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:  # it has just been removed
        return
    for entry in entries:
        is_other_version = entry.name.isdecimal() and entry.path != version_directory
        try:
            if entry.is_dir() and (entry.path == version_directory or not entry.is_symlink()):
                if entry.name != _CACHE and not is_other_version:
                    yield from _files(entry.path, version_directory)
            elif entry.is_file():
                yield entry
        except OSError:
            continue
