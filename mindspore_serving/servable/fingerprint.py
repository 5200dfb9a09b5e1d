"""Fingerprint of the files of a servable version: names, sizes and times."""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias

from mindspore_serving.servable.loader import CONFIG_FILE

Fingerprint: TypeAlias = frozenset[tuple[str, int, int]]  # path, bytes, nanoseconds

_CACHE = "__pycache__"
_SUFFIXES = (".py", ".pbtxt")  # of code, and of Triton's description


def fingerprint(
    servable_directory: str, servable_name: str, version: int, weights: str = ""
) -> Fingerprint:
    """Return the fingerprint of the files that a worker of this version reads.

    They are Python code, config.pbtxt, and every file of the version's directory; every file of the
    directory of a language model; or a model file alone. Of a network in code they are the Python
    files of its directory, and its `weights`. User code may write other files beside them.
    """
    root = os.path.join(servable_directory, servable_name)
    if os.path.isfile(root):  # a model file that is a servable, or the code of a network
        is_code = root.endswith(".py")
        names = os.listdir(servable_directory) if is_code else [servable_name]
        paths = [os.path.join(servable_directory, name) for name in names]
        read = [path for path in paths if not is_code or path.endswith(".py")]
        read += [weights] if weights else []
        return frozenset(
            (os.path.relpath(path, servable_directory), status.st_size, status.st_mtime_ns)
            for path in read
            if (status := _status(path)) is not None
        )
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


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:  # it has just been removed
        return None


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
