"""Codes of four bits that stand for integers of a table."""

from typing import Any, TypeAlias

from llvmlite import ir

from mindspore_serving.llm.runtimes.native.kernels.emitter import I8, U64, Emitter, InstructionSet

Value: TypeAlias = Any
CODES = {  # a name of `FORMATS` -> integers
    "IQ4_NL": (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
    # Twice the numbers, and 12 more: unsigned integers are multiplied faster.
    "MXFP4": (12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0),
}
SIGNED = ("IQ4_NL",)


def codebook(e: Emitter, nibbles: Value, name: str) -> Value:
    """Return the integers of 64 codes, signed ones + `signed_offset`."""
    offset = e.signed_offset if name in SIGNED else 0
    table = [(number + offset + 128) % 256 - 128 for number in CODES[name]]
    match e.instructions:
        case InstructionSet.AVX512_VNNI:
            return e.call("llvm.x86.avx512.pshuf.b.512", U64, e.const(I8, table * 4), nibbles)
        case InstructionSet.PORTABLE:
            result: Value = e.every(U64, 0)
            for code, number in enumerate(table):
                is_code = e.b.icmp_unsigned("==", nibbles, e.every(U64, code))
                result = e.b.select(is_code, e.every(U64, number), result)
            return result
        case _:
            name, half = "llvm.x86.avx2.pshuf.b", ir.VectorType(I8, 32)
            halves = (e.shuffle(nibbles, range(at, at + 32)) for at in (0, 32))
            return e.join(*(e.call(name, half, e.const(I8, table * 2), n) for n in halves))
