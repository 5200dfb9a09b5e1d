"""Compilation by numba, and the cache of machine code in the user's cache directory.

Functions that only compiled code calls are compiled with the one that Python calls, which is kept
on disk in a directory named by all sources here: numba itself only looks at the file of a function.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from numba import config, njit

from mindspore_serving.errors import StartError
from mindspore_serving.process.interpreter import cache_directory

_FAST = {"contract", "reassoc", "nsz"}  # what is fast and keeps NaN and infinite numbers


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` for compiled code alone."""
    options: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "fastmath": _FAST}
    return cast(Callable[..., Any], njit(nogil=True, error_model="numpy", **options)(function))


def entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` for Python, compiled at its first call unless the cache has its code."""
    directory, before = _directory(), config.CACHE_DIR
    config.CACHE_DIR = directory or before
    try:
        made = njit(nogil=True, error_model="numpy", cache=bool(directory))(function)
    finally:
        config.CACHE_DIR = before
    return cast(Callable[..., Any], made)


def _directory() -> str:
    """Return the directory of the cache; "" if others may write to it, or it cannot be made."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    try:
        directory = cache_directory("native", digest.hexdigest()[:24])
        directory.chmod(0o700)
        status = directory.stat()
    except (OSError, StartError):
        return ""
    return str(directory) if status.st_uid == os.geteuid() else ""
