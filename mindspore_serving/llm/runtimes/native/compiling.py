"""Functions for compiled code, and those that Python calls; the user's cache keeps machine code.

A compiled function gets the numbers of its arguments as int64: of an array its address and its
shape, of a tuple those of its parts.
"""

import ctypes
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from mindspore_serving import loading, log
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.checkpoint.built_files import source_digest
from mindspore_serving.llm.runtimes.native.kernels.compiler import compiler
from mindspore_serving.llm.runtimes.native.translation import CompiledOnly, Module
from mindspore_serving.llm.runtimes.native.values import I64, TYPES, ArrayValue, Value

_lock = Lock()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` for compiled code alone."""
    return CompiledOnly(function)


class CompiledFunction:
    """A function for Python: of arrays that are contiguous, integers and tuples of them.

    It returns nothing.  Compiled at its first call unless the cache has its code.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._call: Any = None

    def __call__(self, *values: Any) -> None:
        call = self._call or self._open(values)
        call(*_numbers(values))

    def address(self, *values: Any) -> int:
        """Return the address of the code for arguments like `values`."""
        call = self._call or self._open(values)
        return ctypes.cast(call, ctypes.c_void_p).value or 0

    def _open(self, values: tuple[Any, ...]) -> Any:
        with _lock:
            name = self._function.__name__
            source = source_digest(Path(__file__).parent)
            code = compiler().kept(name, source, lambda: _compile(self._function, values))
            address = compiler().load(code, name)
            count = len(list(_numbers(values)))
            self._call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * count)(address)
        return self._call


def entry(function: Callable[..., None]) -> CompiledFunction:
    """Return `function` for Python."""
    return CompiledFunction(function)


def _numbers(value: Any) -> Iterator[int]:
    """Iterate over the numbers that an argument is passed as."""
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous:
            raise ServingError(f"an array of {value.shape} numbers is not contiguous")
        yield value.ctypes.data
        yield from value.shape
    elif isinstance(value, tuple):
        for part in value:
            yield from _numbers(part)
    else:
        yield value


def _like(value: Any) -> Value:
    """Return a value of compiled code with the types of `value`."""
    number = I64(0)
    if isinstance(value, np.ndarray):
        return ArrayValue(TYPES[value.dtype], number, (number,) * value.ndim)
    if isinstance(value, tuple):
        parts = [_like(part) for part in value]
        return type(value)._make(parts) if hasattr(value, "_make") else tuple(parts)
    return number


def _compile(function: Callable[..., None], values: tuple[Any, ...]) -> bytes:
    """Return the machine code of a function and those that it calls."""
    loading.reached(0.2, "compiling the native runtime")
    began, spent = time.perf_counter(), time.process_time()
    module = Module(function.__name__)
    module.function(function, tuple(map(_like, values)), function.__name__)
    code = compiler().compile_module(module.ir)
    log.info(
        "compiled %s of the native runtime, once for this version and processor: %.1f s, %.1f of "
        "processor time", function.__name__, time.perf_counter() - began,
        time.process_time() - spent,
    )  # fmt: skip
    return code
