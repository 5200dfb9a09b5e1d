"""Compilation by numba, and a cache of the machine code in the user's cache directory.

numba, whose import takes as long as opening a small model and 50 MB of memory, is imported only to
compile.  Later processes load the machine code as that of kernels, and call it by numba's
convention: a status, and pointers to the result and to an exception before the arguments, of which
arrays and tuples are laid out as their parts.  numba's own cache would need numba.
"""

import ctypes
import hashlib
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from mindspore_serving import loading, log
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.runtimes.native.kernels.compiler import compiler
from mindspore_serving.llm.runtimes.native.kernels.machine_code import ObjectFile

# Fast-math flags that keep NaN and infinite numbers.
_FAST = ("contract", "reassoc", "nsz")
_OPTIONS: dict[str, Any] = {
    "error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True,
}  # fmt: skip
_SUCCESS = (0, -2)  # statuses; -2: the result is None
_NUMBA = version("numba")  # raises ModuleNotFoundError
_functions: list["Deferred"] = []
_lock = Lock()


class Deferred:
    """A function for compiled code alone; `make` returns it with numba when it is compiled."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.made: Any = None
        _functions.append(self)

    def __call__(self, *values: Any) -> Any:
        raise TypeError("this function is for compiled code alone")


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` for compiled code alone."""

    def make() -> Any:
        from numba import njit

        return njit(fastmath={*_FAST}, **_OPTIONS)(function)

    return Deferred(make)


class CompiledFunction:
    """A function for Python: of arrays that are contiguous, integers and tuples of them.

    It returns nothing.  Compiled at its first call unless the cache has its code.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._call: Any = None
        self._result = ctypes.create_string_buffer(16)  # pointers to a result and an exception

    def __call__(self, *values: Any) -> None:
        call = self._call or self._open(values)
        pointer = ctypes.addressof(self._result)
        status = call(pointer, pointer + 8, *_parts(values))
        if status not in _SUCCESS:
            raise ServingError(f"{self._function.__name__} has failed with status {status}")

    def address(self, *values: Any) -> int:
        """Return the address of the code for arguments like `values`, of numba's convention."""
        call = self._call or self._open(values)
        return ctypes.cast(call, ctypes.c_void_p).value or 0

    def _open(self, values: tuple[Any, ...]) -> Any:
        with _lock:
            name = f"{self._function.__name__}-{_source_digest()}"
            content = compiler().kept(name, lambda: _compile(self._function, values))
            symbol, _, code = content.partition(b"\n")
            address = compiler().load(code, symbol.decode())
            count = len(list(_parts(values)))
            kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * (2 + count))
            self._call = kind(address)
        return self._call


def entry(function: Callable[..., None]) -> CompiledFunction:
    """Return `function` for Python."""
    return CompiledFunction(function)


def _parts(value: Any) -> Iterator[int]:
    """Iterate over the numbers that numba passes for an argument."""
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous:
            raise ServingError(f"an array of {value.shape} numbers is not contiguous")
        yield from (0, 0, value.size, value.itemsize, value.ctypes.data)
        yield from value.shape
        yield from value.strides
    elif isinstance(value, tuple):
        for part in value:
            yield from _parts(part)
    else:
        yield value


def _compile(function: Callable[..., None], values: tuple[Any, ...]) -> bytes:
    """Return the name of the compiled function in a line, and its machine code."""
    from numba import njit, typeof
    from numba.core import event

    _let_numba_type()
    made = njit(**_OPTIONS)(function)
    signature = tuple(map(typeof, values))
    with event.install_listener("numba:compile", _listener()):
        made.compile(signature)
    overload = made.overloads[signature]
    *_, (code, _) = overload.library.serialize_using_object_code()
    unknown = [name for name in ObjectFile(code).undefined if not hasattr(ctypes.CDLL(None), name)]
    if unknown:
        raise ServingError(f"compiled code of numba needs {', '.join(unknown)}, unknown here")
    return b"%s\n%s" % (overload.fndesc.llvm_func_name.encode(), code)


@cache
def _let_numba_type() -> None:
    """Let numba take each `Deferred` for the function that it makes."""
    from numba.core.registry import cpu_target
    from numba.extending import typeof_impl

    def find_type(deferred: Deferred, context: Any) -> Any:
        return cpu_target.typing_context.resolve_value_type(deferred.made)

    typeof_impl.register(Deferred)(find_type)
    for function in _functions:
        function.made = function.make()
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def _listener() -> Any:
    """Return a listener that logs a compilation, its seconds, and reports its progress."""
    from numba.core import event

    class Compilation(event.Listener):  # type: ignore[misc]  # numba has no types
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
                return
            seconds = time.perf_counter() - self._began
            spent = time.process_time() - self._spent
            log.info("compiled the native runtime: %.1f s, %.1f of processor time", seconds, spent)

    return Compilation()


@cache
def _source_digest() -> str:
    """Return a digest of the sources of compiled functions and of numba's version."""
    digest = hashlib.sha256(_NUMBA.encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]
