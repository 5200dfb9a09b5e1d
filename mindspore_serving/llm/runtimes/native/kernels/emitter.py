"""LLVM code of kernels: loops, loads and vectors, and products of integers by instruction set.

Vectors are 64 weights wide whatever the processor: LLVM splits them where its registers are
narrower.  Only products of integers need instructions by name.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, TypeAlias

from llvmlite import ir

Value: TypeAlias = Any  # of LLVM
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
U64, S32, L16, F16L = (
    ir.VectorType(I8, 64),  # weights or activations
    ir.VectorType(I16, 32),  # sums of pairs
    ir.VectorType(I32, 16),  # sums of quads
    ir.VectorType(F32, 16),
)


PREFETCH = 4096  # bytes ahead: further than the processor looks by itself, a page


class InstructionSet(str, Enum):
    """Instructions that multiply integers."""

    AVX512_VNNI = "avx512_vnni"
    AVX_VNNI = "avx_vnni"
    AVX2 = "avx2"
    PORTABLE = "portable"  # only what LLVM has on every processor: what others are tested against


class Emitter:
    """Code of one function."""

    def __init__(self, function: ir.Function, instructions: InstructionSet) -> None:
        self.instructions = instructions
        self.b = ir.IRBuilder(function.append_basic_block("entry"))

    # Numbers, memory and loops.

    def c(self, value: int, kind: Any = I64) -> Value:
        return ir.Constant(kind, value)

    def const(self, kind: Any, values: Sequence[float]) -> Value:
        return ir.Constant(ir.VectorType(kind, len(values)), list(values))

    def every(self, kind: Any, value: float) -> Value:
        """Return a vector of type `kind` with `value` in each lane."""
        return ir.Constant(kind, [value] * kind.count)

    def load(self, address: Value, kind: Any, offset: Value | int = 0) -> Value:
        return self.b.load(self.address(address, kind, offset), align=1)

    def store(self, value: Value, address: Value, offset: Value | int = 0) -> None:
        self.b.store(value, self.address(address, value.type, offset), align=1)

    def address(self, address: Value, kind: Any, offset: Value | int = 0) -> Value:
        """Return an address, a number, + `offset` bytes as a pointer to `kind`."""
        if isinstance(offset, int):
            offset = self.c(offset)
        return self.b.inttoptr(self.b.add(address, offset), kind.as_pointer())

    def prefetch(self, address: Value, size: int) -> None:
        """Fetch the lines of `size` bytes that lie PREFETCH bytes after `address`, into L2."""
        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        name = "llvm.prefetch.p0"
        function = self.b.module.globals.get(name) or ir.Function(self.b.module, kind, name)
        for offset in range(0, size, 64):
            at = self.address(address, I8, PREFETCH + offset)
            self.b.call(function, [at, *(self.c(number, I32) for number in (0, 3, 1))])

    def variable(self, initial: Value) -> Value:
        """Return the address of a variable, in the entry block."""
        with self.b.goto_entry_block():
            address = self.b.alloca(initial.type)
        self.b.store(initial, address)
        return address

    @contextmanager
    def loop(self, first: Value, end: Value, step: int = 1) -> Iterator[Value]:
        """Repeat the block while the yielded index + `step` is at most `end`."""
        index = self.variable(first)
        test, body, after = (self.b.append_basic_block(name) for name in ("test", "body", "after"))
        self.b.branch(test)
        self.b.position_at_end(test)
        i = self.b.load(index)
        more = self.b.icmp_signed("<=", self.b.add(i, self.c(step)), end)
        self.b.cbranch(more, body, after)
        self.b.position_at_end(body)
        yield i
        self.b.store(self.b.add(i, self.c(step)), index)
        self.b.branch(test)
        self.b.position_at_end(after)

    def call(self, name: str, result: Any, *arguments: Value) -> Value:
        """Call a function of LLVM or of the C library."""
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        function = self.b.module.globals.get(name) or ir.Function(self.b.module, kind, name)
        return self.b.call(function, arguments)

    # Vectors.

    def splat(self, value: Value, count: int) -> Value:
        single = ir.Constant(ir.VectorType(value.type, 1), ir.Undefined)
        return self.shuffle(self.b.insert_element(single, value, self.c(0, I32)), [0] * count)

    def shuffle(self, vector: Value, lanes: Sequence[int], other: Value | None = None) -> Value:
        if other is None:
            other = ir.Constant(vector.type, ir.Undefined)
        return self.b.shuffle_vector(vector, other, self.const(I32, lanes))

    def join(self, low: Value, high: Value) -> Value:
        return self.shuffle(low, range(2 * low.type.count), high)

    def vector(self, values: Sequence[Value]) -> Value:
        result: Value = ir.Constant(ir.VectorType(values[0].type, len(values)), ir.Undefined)
        for lane, value in enumerate(values):
            result = self.b.insert_element(result, value, self.c(lane, I32))
        return result

    def twice(self, vector: Value) -> Value:
        """Return 32 bytes twice."""
        return self.shuffle(vector, [*range(vector.type.count)] * 2)

    def bits(self, vector: Value, shifts: tuple[int, int], mask: int) -> Value:
        """Return (byte >> shift) & mask of 64 bytes, with one shift for each half."""
        words = self.b.bitcast(vector, S32)
        if any(shifts):
            words = self.b.lshr(words, self.const(I16, [shifts[0]] * 16 + [shifts[1]] * 16))
        return self.b.and_(self.b.bitcast(words, U64), self.every(U64, mask))

    def left(self, vector: Value, shift: int) -> Value:
        """Return bytes << shift; no bit may leave its byte."""
        words = self.b.shl(self.b.bitcast(vector, S32), self.every(S32, shift))
        return self.b.bitcast(words, vector.type)

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        width = f"v{x.type.count}f32" if isinstance(x.type, ir.VectorType) else "f32"
        return self.call(f"llvm.fma.{width}", x.type, x, y, z)

    def total(self, vector: Value) -> Value:
        """Return the sum of a vector's lanes, halves first."""
        while (half := vector.type.count // 2) >= 1:
            low, high = (self.shuffle(vector, range(at, at + half)) for at in (0, half))
            is_float = isinstance(vector.type.element, ir.FloatType)
            vector = self.b.fadd(low, high) if is_float else self.b.add(low, high)
        return self.b.extract_element(vector, self.c(0, I32))

    def widened(self, vector: Value, kind: Any, *, signed: bool) -> Value:
        target = ir.VectorType(kind, vector.type.count)
        return self.b.sext(vector, target) if signed else self.b.zext(vector, target)

    # Products of integers.

    @property
    def signed_offset(self) -> int:
        """Number that `dot_signed` adds to each weight; its caller subtracts what that adds."""
        return 0 if self.instructions == InstructionSet.AVX2 else 128

    def dot(self, weights: Value, activations: Value) -> Value:
        """Return sums of quads of products, int32 [16]; unsigned weights of at most 7 bits."""
        if self.instructions == InstructionSet.AVX2:
            return self._pairs_in_avx2(weights, activations, self.every(S32, 1))
        return self._dot(weights, activations)

    def dot_signed(self, weights: Value, activations: Value) -> Value:
        """Return sums of quads of products, int32 [16], of signed weights + `signed_offset`."""
        if self.instructions == InstructionSet.AVX2:
            return self._signed_in_avx2(weights, activations, self.every(S32, 1))
        return self._dot(self.b.xor(weights, self.every(U64, -128)), activations)

    def _dot(self, weights: Value, activations: Value) -> Value:
        zero = self.every(L16, 0)
        if self.instructions == InstructionSet.PORTABLE:
            products = self._products(weights, activations, I32)
            quads = [self.shuffle(products, range(at, 64, 4)) for at in range(4)]
            return self.b.add(self.b.add(*quads[:2]), self.b.add(*quads[2:]))
        arguments = zero, self.b.bitcast(weights, L16), self.b.bitcast(activations, L16)
        return self._vnni("vpdpbusd", arguments)

    def add_scaled(self, sums: Value, weights: Value, activations: Value, scales: Value) -> Value:
        """Return `sums` + sums of quads of weight * activation * scale.

        Weights are unsigned of at most 6 bits; scales are int16 [32], one for each pair.
        """
        match self.instructions:
            case InstructionSet.AVX2:
                return self.b.add(sums, self._pairs_in_avx2(weights, activations, scales))
            case InstructionSet.PORTABLE:
                products = self._products(weights, activations, I32)
                even, odd = (self.shuffle(products, range(at, 64, 2)) for at in range(2))
                wide = self.widened(scales, I32, signed=True)
                return self.b.add(sums, self._pair_sums(self.b.mul(self.b.add(even, odd), wide)))
            case InstructionSet.AVX512_VNNI:
                name = "llvm.x86.avx512.pmaddubs.w.512"
                pairs = self.call(name, S32, weights, activations)
            case _:
                name = "llvm.x86.avx2.pmadd.ub.sw"
                half = ir.VectorType(I16, 16)
                pairs = self._halves(lambda *v: self.call(name, half, *v), weights, activations)
        words = self.b.bitcast(pairs, L16), self.b.bitcast(scales, L16)
        return self._vnni("vpdpwssd", (sums, *words))

    def add_scaled_signed(
        self, sums: Value, weights: Value, activations: Value, scales: Value
    ) -> Value:
        """Return as `add_scaled`, for signed weights + `signed_offset`.

        The scales of the two pairs of a quad are equal.
        """
        if self.instructions == InstructionSet.AVX2:
            return self.b.add(sums, self._signed_in_avx2(weights, activations, scales))
        quads = self.widened(self.shuffle(scales, range(0, 32, 2)), I32, signed=True)
        return self.b.add(sums, self.b.mul(self.dot_signed(weights, activations), quads))

    def multiply_pairs(self, x: Value, y: Value) -> Value:
        """Return sums of pairs of products of two vectors of 16 int16, int32 [8]."""
        if self.instructions != InstructionSet.PORTABLE:
            return self.call("llvm.x86.avx2.pmadd.wd", ir.VectorType(I32, 8), x, y)
        wide = (self.widened(vector, I32, signed=True) for vector in (x, y))
        return self._pair_sums(self.b.mul(*wide))

    def _vnni(self, name: str, arguments: Sequence[Value]) -> Value:
        if self.instructions == InstructionSet.AVX512_VNNI:
            return self.call(f"llvm.x86.avx512.{name}.512", L16, *arguments)
        # LLVM encodes it for AVX-VNNI where the processor has that and no AVX512.
        half = ir.VectorType(I32, 8)
        return self._halves(
            lambda *v: self.call(f"llvm.x86.avx512.{name}.256", half, *v), *arguments
        )

    def _pairs_in_avx2(self, weights: Value, activations: Value, scales: Value) -> Value:
        def half(w: Value, a: Value, s: Value) -> Value:
            pairs = self.call("llvm.x86.avx2.pmadd.ub.sw", ir.VectorType(I16, 16), w, a)
            return self.multiply_pairs(pairs, s)

        return self._halves(half, weights, activations, scales)

    def _signed_in_avx2(self, weights: Value, activations: Value, scales: Value) -> Value:
        def half(w: Value, a: Value, s: Value) -> Value:
            sign, kind = "llvm.x86.avx2.psign.b", w.type
            absolute, turned = self.call(sign, kind, w, w), self.call(sign, kind, a, w)
            pairs = self.call("llvm.x86.avx2.pmadd.ub.sw", ir.VectorType(I16, 16), absolute, turned)
            return self.multiply_pairs(pairs, s)

        return self._halves(half, weights, activations, scales)

    def _halves(self, operation: Callable[..., Value], *vectors: Value) -> Value:
        parts = []
        for side in range(2):
            halves = [v.type.count // 2 for v in vectors]
            parts.append(operation(*(
                self.shuffle(v, range(side * half, side * half + half))
                for v, half in zip(vectors, halves, strict=True)
            )))  # fmt: skip
        return self.join(*parts)

    def _products(self, weights: Value, activations: Value, kind: Any) -> Value:
        return self.b.mul(
            self.widened(weights, kind, signed=False), self.widened(activations, kind, signed=True)
        )

    def _pair_sums(self, products: Value) -> Value:
        count = products.type.count
        return self.b.add(*(self.shuffle(products, range(at, count, 2)) for at in range(2)))
