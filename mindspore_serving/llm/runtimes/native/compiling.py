"""Compilation by numba, and the cache of machine code in the user's cache directory.

Functions that only compiled code calls are compiled with the one that Python calls, which is kept
on disk in a directory named by all sources here: numba itself only looks at the file of a function.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from numba import cfunc, config, njit, types
from numba.core import event

from mindspore_serving import loading, log
from mindspore_serving.errors import StartError
from mindspore_serving.process.interpreter import cache_directory

_FAST = {"contract", "reassoc", "nsz"}  # what is fast and keeps NaN and infinite numbers
_functions: list[Callable[..., Any]] = []


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` for compiled code alone."""
    options: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "fastmath": _FAST}
    made = cast(Callable[..., Any], njit(nogil=True, error_model="numpy", **options)(function))
    _functions.append(made)
    return made


def entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` for Python, compiled at its first call unless the cache has its code."""
    with _cache() as has_cache:
        made = njit(nogil=True, error_model="numpy", cache=has_cache)(function)
    return cast(Callable[..., Any], made)


def kernel(function: Callable[[int, int], None]) -> Any:
    """Return a kernel of threads (`team`), compiled unless the cache has it; keep it referenced."""
    options: Any = {"error_model": "numpy", "fastmath": _FAST}
    with _cache() as has_cache:
        return cfunc(types.void(types.int64, types.int64), cache=has_cache, **options)(function)


@contextmanager
def _cache() -> Iterator[bool]:
    """Hold numba's cache in the directory of all sources, if it may be used."""
    directory, before = _directory(), config.CACHE_DIR
    config.CACHE_DIR = directory or before
    try:
        yield bool(directory)
    finally:
        config.CACHE_DIR = before


@contextmanager
def compilation_logged() -> Iterator[None]:
    """Hold a listener that logs a compilation, its seconds, and reports its progress."""
    with event.install_listener("numba:compile", _Compilation()):
        yield


class _Compilation(event.Listener):  # type: ignore[misc]  # numba has no types
    """Follower of numba: a function starts, compiles those that it calls, then ends."""

    def __init__(self) -> None:
        self._open = self._done = 0
        self._began, self._spent = 0.0, 0.0

    def on_start(self, event: Any) -> None:
        if not self._open:
            self._began, self._spent = time.perf_counter(), time.process_time()
            log.info("compiling the native runtime, once for this version and processor")
        self._open += 1

    def on_end(self, event: Any) -> None:
        self._open -= 1
        self._done += 1
        if self._open:
            share = min(1.0, self._done / len(_functions))
            loading.reached(0.2 + 0.7 * share, "compiling the native runtime")
        else:
            seconds = time.perf_counter() - self._began
            spent = time.process_time() - self._spent
            log.info("compiled the native runtime: %.1f s, %.1f of processor time", seconds, spent)


def _directory() -> str:
    """Return the directory of the cache; "" if others may write to it, or it cannot be made."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    try:
        directory = cache_directory("native", digest.hexdigest()[:24])
        directory.chmod(0o700)
        status = directory.stat()
    except (OSError, StartError):
        return ""
    return str(directory) if status.st_uid == os.geteuid() else ""
