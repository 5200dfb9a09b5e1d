"""LLVM code of kernels: loops, loads and vectors, and products of integers by instruction set.

Vectors are 64 weights wide whatever the processor: LLVM splits them where its registers are
narrower.  Only products of integers need instructions by name.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import reduce
from typing import Any, TypeAlias

from llvmlite import ir

Value: TypeAlias = Any  # of LLVM
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
U64, L16, F16L, Q8 = (
    ir.VectorType(I8, 64),  # weights or activations
    ir.VectorType(I32, 16),  # sums of quads
    ir.VectorType(F32, 16),
    ir.VectorType(I64, 8),
)


PREFETCH = 2**14  # bytes ahead: further than the processor looks by itself, which is a page


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
            self.b.call(function, [at, *(self.c(number, I32) for number in (0, 2, 1))])

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

    def words(self, vector: Value, lanes: Sequence[int], other: Value | None = None) -> Value:
        """Return 64-bit parts of one or two vectors of 64 bytes as 64 bytes."""
        parts = [v if v is None else self.b.bitcast(v, Q8) for v in (vector, other)]
        return self.b.bitcast(self.shuffle(parts[0], lanes, parts[1]), U64)

    def right(self, vector: Value, shifts: Sequence[int]) -> Value:
        """Return eight parts of 64 bits, each shifted right."""
        parts = self.b.bitcast(vector, Q8)
        return self.b.bitcast(self.b.lshr(parts, self.const(I64, shifts)), U64)

    def left(self, vector: Value, shifts: Sequence[int]) -> Value:
        """Return eight parts of 64 bits, each shifted left."""
        parts = self.b.bitcast(vector, Q8)
        return self.b.bitcast(self.b.shl(parts, self.const(I64, shifts)), U64)

    def masked(self, vector: Value, mask: int) -> Value:
        """Return bytes & mask."""
        return self.b.and_(vector, self.every(U64, mask))

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        width = f"v{x.type.count}f32" if isinstance(x.type, ir.VectorType) else "f32"
        return self.call(f"llvm.fma.{width}", x.type, x, y, z)

    def totals(self, vectors: Sequence[Value]) -> list[Value]:
        """Return the sum of each vector's 16 floats, four vectors together.

        The order of additions does not depend on how many vectors there are.
        """
        zero = self.every(F16L, 0.0)
        sums: list[Value] = []
        for at in range(0, len(vectors), 4):
            four = [*vectors[at : at + 4], zero, zero, zero][:4]
            low, high = (self._added(four[k], four[k + 1], step=1) for k in (0, 2))
            lanes = self._added(low, high, step=2)
            while lanes.type.count > 4:
                half = lanes.type.count // 2
                sides = (self.shuffle(lanes, range(k, k + half)) for k in (0, half))
                lanes = self.b.fadd(*sides)
            sums += [self.b.extract_element(lanes, self.c(k, I32)) for k in range(4)]
        return sums[: len(vectors)]

    def _added(self, x: Value, y: Value, step: int) -> Value:
        """Return sums of halves of each four lanes: first x's, then y's, `step` lanes by turns."""
        first = [(0, 16, 1, 17), (0, 1, 16, 17)][step - 1]
        lanes = [4 * four + lane for four in range(4) for lane in first]
        return self.b.fadd(self.shuffle(x, lanes, y), self.shuffle(x, [n + 2 for n in lanes], y))

    def total(self, vector: Value) -> Value:
        """Return the sum of 16 floats."""
        return self.totals([vector])[0]

    def widened(self, vector: Value, kind: Any, *, signed: bool) -> Value:
        target = ir.VectorType(kind, vector.type.count)
        return self.b.sext(vector, target) if signed else self.b.zext(vector, target)

    # Products of integers.

    @property
    def signed_offset(self) -> int:
        """Number that signed weights have more when `dot` takes them."""
        return 0 if self.instructions == InstructionSet.AVX2 else 128

    @property
    def takes_bytes(self) -> bool:
        """True if `dot` takes unsigned weights of 8 bits."""
        return self.instructions != InstructionSet.AVX2

    def dot(
        self, start: Value, weights: Sequence[Value], activations: Sequence[Value], *, signed: bool
    ) -> Value:
        """Return `start` + sums of quads of products of all vectors, int32 [16].

        Weights are signed + `signed_offset`, or unsigned; those of two vectors are at most 63
        unless `takes_bytes`.
        """
        pairs = list(zip(weights, activations, strict=True))
        if self.instructions == InstructionSet.AVX2:
            return self.b.add(start, (self._signed_in_avx2 if signed else self._in_avx2)(pairs))
        for vector, x in pairs:
            if self.instructions == InstructionSet.PORTABLE:
                products = self.b.mul(
                    self.widened(vector, I32, signed=False), self.widened(x, I32, signed=True)
                )
                for at in range(4):
                    start = self.b.add(start, self.shuffle(products, range(at, 64, 4)))
            else:
                words = self.b.bitcast(vector, L16), self.b.bitcast(x, L16)
                start = self._vnni("vpdpbusd", (start, *words))
        return start

    def _vnni(self, name: str, arguments: Sequence[Value]) -> Value:
        if self.instructions == InstructionSet.AVX512_VNNI:
            return self.call(f"llvm.x86.avx512.{name}.512", L16, *arguments)
        # LLVM encodes it for AVX-VNNI where the processor has that and no AVX512.
        half = ir.VectorType(I32, 8)
        return self._halves(
            lambda *v: self.call(f"llvm.x86.avx512.{name}.256", half, *v), *arguments
        )

    def _in_avx2(self, pairs: Sequence[tuple[Value, Value]]) -> Value:
        """Add products as int16, then pairs of those as int32."""
        sums = [self._multiply_in_avx2(*pair) for pair in pairs]
        return self._pairs_in_avx2(reduce(self.b.add, sums))

    def _signed_in_avx2(self, pairs: Sequence[tuple[Value, Value]]) -> Value:
        sign, kind, sums = "llvm.x86.avx2.psign.b", ir.VectorType(I8, 32), []
        for weights, x in pairs:
            absolute = self._halves(lambda w: self.call(sign, kind, w, w), weights)
            turned = self._halves(lambda v, w: self.call(sign, kind, v, w), x, weights)
            sums.append(self._pairs_in_avx2(self._multiply_in_avx2(absolute, turned)))
        return reduce(self.b.add, sums)

    def _multiply_in_avx2(self, weights: Value, activations: Value) -> Value:
        kind = ir.VectorType(I16, 16)
        return self._halves(
            lambda *v: self.call("llvm.x86.avx2.pmadd.ub.sw", kind, *v), weights, activations
        )

    def _pairs_in_avx2(self, words: Value) -> Value:
        kind, units = ir.VectorType(I32, 8), self.every(ir.VectorType(I16, 16), 1)
        return self._halves(lambda v: self.call("llvm.x86.avx2.pmadd.wd", kind, v, units), words)

    def _halves(self, operation: Callable[..., Value], *vectors: Value) -> Value:
        parts = []
        for side in range(2):
            halves = [v.type.count // 2 for v in vectors]
            parts.append(operation(*(
                self.shuffle(v, range(side * half, side * half + half))
                for v, half in zip(vectors, halves, strict=True)
            )))  # fmt: skip
        return self.join(*parts)
