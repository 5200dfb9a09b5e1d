"""Memory by address for compiled code, and an exponential that LLVM vectorises.

Addresses come from arrays that were checked when a plan was made; nothing is checked here.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from mindspore_serving.llm.runtimes.native.translation import CompiledOnly
from mindspore_serving.llm.runtimes.native.values import ArrayValue

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F16, _F32 = ir.HalfType(), ir.FloatType()
_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.693359375, -2.12194440e-4
_TAYLOR = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)
_LARGEST = 87.0  # exponent; results stay normal numbers
Generate = Callable[..., Any]


def _at(builder: Any, element: Any, kind: Any) -> Any:
    """Return a pointer to an element; LLVM vectorises loops over indices, not over addresses."""
    address, index = element
    return builder.gep(builder.inttoptr(address, kind.as_pointer()), [index])


def _load_f32(b: Any, *element: Any) -> Any:
    return b.load(_at(b, element, _F32), align=4)


def _load_f16(b: Any, *element: Any) -> Any:
    return b.fpext(b.load(_at(b, element, _F16), align=2), _F32)


def _load_bf16(b: Any, *element: Any) -> Any:
    bits = b.zext(b.load(_at(b, element, _I16), align=2), _I32)
    return b.bitcast(b.shl(bits, ir.Constant(_I32, 16)), _F32)


def _load_u8(b: Any, *element: Any) -> Any:
    return b.uitofp(b.load(_at(b, element, _I8), align=1), _F32)


def _store_f32(b: Any, address: Any, index: Any, value: Any) -> Any:
    b.store(value, _at(b, (address, index), _F32), align=4)
    return ir.Constant(_I32, 0)


def _store_f16(b: Any, address: Any, index: Any, value: Any) -> Any:
    b.store(b.fptrunc(value, _F16), _at(b, (address, index), _F16), align=2)
    return ir.Constant(_I32, 0)


def _store_bf16(b: Any, address: Any, index: Any, value: Any) -> Any:
    bits = b.bitcast(value, _I32)
    lowest = b.and_(b.lshr(bits, ir.Constant(_I32, 16)), ir.Constant(_I32, 1))
    rounded = b.add(b.add(bits, ir.Constant(_I32, 0x7FFF)), lowest)
    high = b.trunc(b.lshr(rounded, ir.Constant(_I32, 16)), _I16)
    b.store(high, _at(b, (address, index), _I16), align=2)
    return ir.Constant(_I32, 0)


def _store_u8(b: Any, address: Any, index: Any, value: Any) -> Any:
    b.store(b.fptoui(value, _I8), _at(b, (address, index), _I8), align=1)
    return ir.Constant(_I32, 0)


def _store_i64(b: Any, address: Any, index: Any, value: Any) -> Any:
    b.store(value, _at(b, (address, index), _I64), align=8)
    return ir.Constant(_I32, 0)


def _call_kernel(b: Any, kernel: Any, arguments: Any, chunk: Any) -> Any:
    kind = ir.FunctionType(ir.VoidType(), [_I64, _I64])
    b.call(b.inttoptr(kernel, kind.as_pointer()), [arguments, chunk])
    return ir.Constant(_I32, 0)


def _exchange_i64(b: Any, address: Any, expected: Any, value: Any) -> Any:
    """Store `value` if the number is `expected`; return 1 then, else 0.  Atomic."""
    pointer = b.inttoptr(address, _I64.as_pointer())
    swapped = b.cmpxchg(pointer, expected, value, "seq_cst", "seq_cst")
    return b.zext(b.extract_value(swapped, 1), _I32)


def _exp(b: Any, x: Any) -> Any:
    """Emit e**x to 2e-7, for x within -87..87; beyond, the result is that of the nearer end."""

    def c(value: float) -> Any:
        return ir.Constant(_F32, value)

    def call(name: str, *arguments: Any) -> Any:
        kind = ir.FunctionType(_F32, [_F32] * len(arguments))
        function = b.module.globals.get(name) or ir.Function(b.module, kind, name)
        return b.call(function, arguments)

    x = call("llvm.minnum.f32", call("llvm.maxnum.f32", x, c(-_LARGEST)), c(_LARGEST))
    count = call("llvm.rint.f32", b.fmul(x, c(_LOG2E)))
    rest = call("llvm.fma.f32", count, c(-_LN2_HIGH), x)
    rest = call("llvm.fma.f32", count, c(-_LN2_LOW), rest)
    total = c(_TAYLOR[0])
    for term in _TAYLOR[1:]:
        total = call("llvm.fma.f32", total, rest, c(term))
    exponent = b.add(b.fptosi(count, _I32), ir.Constant(_I32, 127))
    return b.fmul(total, b.bitcast(b.shl(exponent, ir.Constant(_I32, 23)), _F32))


def _array(element: Any) -> Generate:
    """Return a function of an address, rows and columns, whose result is an array there."""
    return lambda _, address, rows, columns: ArrayValue(element, address, (rows, columns))


def _load(generate: Generate) -> CompiledOnly:
    return CompiledOnly(generate, (_I64, _I64))


def _store(generate: Generate) -> CompiledOnly:
    return CompiledOnly(generate, (_I64, _I64, _F32))


load_f32, load_f16 = _load(_load_f32), _load(_load_f16)
load_bf16, load_u8 = _load(_load_bf16), _load(_load_u8)
store_f32, store_f16 = _store(_store_f32), _store(_store_f16)
store_bf16, store_u8 = _store(_store_bf16), _store(_store_u8)
store_i64 = CompiledOnly(_store_i64, (_I64,) * 3)
call_kernel = CompiledOnly(_call_kernel, (_I64,) * 3)
exp = CompiledOnly(_exp, (_F32,))
exchange_i64 = CompiledOnly(_exchange_i64, (_I64,) * 3)
int64_array = CompiledOnly(_array(_I64), (_I64,) * 3)
float32_array = CompiledOnly(_array(_F32), (_I64,) * 3)
