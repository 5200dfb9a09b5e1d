"""Translation of functions to LLVM: the part of Python that compiled operations are written in.

Functions have int64, float32, arrays of them that are contiguous, and tuples; statements are
assignments, loops by while and by for over `range` with steps above zero, if, continue, break and
return.  Indices are not checked and not negative.  A function without a result is a function of
LLVM, one with a result is expanded where it is called.  Anything else raises `ServingError`, which
names the line.
"""

import ast
import builtins
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.runtimes.native.definitions import assigned, definition, has_result
from mindspore_serving.llm.runtimes.native.values import (
    I1,
    I64,
    Arithmetic,
    ArrayValue,
    NotTranslated,
    Value,
    describe,
    flatten,
    is_constant,
    rebuild,
)

_FLOAT_FUNCTIONS = {
    math.sqrt: "llvm.sqrt.f32", math.floor: "llvm.floor.f32", math.cos: "llvm.cos.f32",
    math.sin: "llvm.sin.f32", math.erf: "erff", math.log1p: "log1pf",
}  # fmt: skip
Emits = Callable[..., Value]


class CompiledOnly:
    """A function for compiled code alone: one in Python, or one that emits code of its arguments.

    Args:
        function: what is translated, or gets a builder and numbers of LLVM.
        kinds: LLVM's types of the arguments of a function that emits.
    """

    def __init__(self, function: Emits, kinds: tuple[Any, ...] | None = None) -> None:
        self.function, self.kinds = function, kinds

    def __call__(self, *values: Any) -> Any:
        raise TypeError("this function is for compiled code alone")


class Module:
    """A module of LLVM with a function and those that it calls."""

    def __init__(self, name: str) -> None:
        self.ir = ir.Module(name)
        self._functions: dict[tuple[Emits, str], Any] = {}

    def function(self, function: Emits, values: tuple[Value, ...], name: str = "") -> Any:
        """Return the function of LLVM for arguments like `values`; with a `name` it is exported."""
        key = function, describe(values)
        if key not in self._functions:
            kind = ir.FunctionType(ir.VoidType(), [number.type for number in flatten(values)])
            label = name or f"{function.__name__}.{len(self._functions)}"
            made = self._functions[key] = ir.Function(self.ir, kind, label)
            made.linkage = "" if name else "internal"
            builder = ir.IRBuilder(made.append_basic_block())
            frame = _Frame(self, builder, function)
            frame.run(rebuild(values, iter(made.args)))
            if not builder.block.is_terminated:
                builder.ret_void()
        return self._functions[key]


class _Frame:
    """Translation of a function's body at the place of `builder`."""

    def __init__(self, module: Module, builder: Any, function: Emits, end: Any = None) -> None:
        self._module, self._builder, self._function = module, builder, function
        self._math = Arithmetic(builder)
        self._variables: dict[str, tuple[Value, list[Any]]] = {}
        self._constants: dict[str, Value] = {}  # arguments that the body does not change
        self._loops: list[tuple[Any, Any]] = []  # where continue and break lead
        self._end = end  # where return leads in a function that is expanded

    def run(self, values: Sequence[Value]) -> None:
        """Translate the body with these arguments."""
        node = definition(self._function)
        for parameter, value in zip(node.args.args, values, strict=True):
            if parameter.arg in assigned(self._function):
                self._set(parameter.arg, value)
            else:
                self._constants[parameter.arg] = value
        self._block(node.body)
        if self._end is not None:
            self._go(self._end)

    def result(self) -> Value:
        """Return the value of the function that was expanded."""
        return self._get("return")

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if self._builder.block.is_terminated:
                return
            try:
                getattr(self, f"_do_{type(statement).__name__}", _refuse)(statement)
            except NotTranslated as error:
                raise ServingError(
                    f"{self._function.__module__}:{statement.lineno}: {error} is not translated "
                    "to compiled code"
                ) from error

    def _get(self, name: str) -> Value:
        like, pointers = self._variables[name]
        return rebuild(like, iter([self._builder.load(pointer) for pointer in pointers]))

    def _set(self, name: str, value: Value) -> None:
        numbers = list(flatten(value))
        if name not in self._variables:
            with self._builder.goto_entry_block():
                pointers = [self._builder.alloca(number.type) for number in numbers]
            self._variables[name] = rebuild(value, iter(numbers)), pointers
        like, pointers = self._variables[name]
        if describe(like) != describe(value):
            raise NotTranslated(f"{name} as {describe(value)} after {describe(like)}")
        for number, pointer in zip(numbers, pointers, strict=True):
            self._builder.store(number, pointer)

    # Statements, by ast's names of them.

    def _do_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self._value(node.value)

    def _do_Assign(self, node: ast.Assign) -> None:
        value = self._value(node.value)
        for target in node.targets:
            self._assign(target, value)

    def _do_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, self._value(node.value))

    def _do_AugAssign(self, node: ast.AugAssign) -> None:
        value = self._value(node.target)
        name = type(node.op).__name__
        self._assign(node.target, self._math.binary(name, value, self._value(node.value)))

    def _assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self._set(target.id, value)
        elif isinstance(target, ast.Tuple):
            for each, part in zip(target.elts, value, strict=True):
                self._assign(each, part)
        elif isinstance(target, ast.Subscript):
            array, pointer = self._element(target)
            self._builder.store(self._math.number(value, array.element), pointer)
        else:
            _refuse(target)

    def _do_If(self, node: ast.If) -> None:
        self._branch(
            self._truth(node.test), lambda: self._block(node.body),
            lambda: self._block(node.orelse),
        )  # fmt: skip

    def _branch(self, truth: Value, yes: Callable[[], None], no: Callable[[], None]) -> None:
        if is_constant(truth):
            (yes if truth else no)()
            return
        blocks = [self._builder.append_basic_block() for _ in range(3)]
        self._builder.cbranch(truth, *blocks[:2])
        for block, write in zip(blocks, (yes, no), strict=False):
            self._builder.position_at_end(block)
            write()
            self._go(blocks[2])
        self._builder.position_at_end(blocks[2])

    def _go(self, block: Any) -> None:
        if not self._builder.block.is_terminated:
            self._builder.branch(block)

    def _do_While(self, node: ast.While) -> None:
        self._loop(lambda: self._truth(node.test), node.body, lambda: None)

    def _do_For(self, node: ast.For) -> None:
        name = node.target
        call = node.iter
        if not (isinstance(name, ast.Name) and isinstance(call, ast.Call)):
            raise NotTranslated("a loop over anything but range")
        if self._value(call.func) is not range:
            raise NotTranslated("a loop over anything but range")
        bounds = [self._math.number(self._value(each), I64) for each in call.args]
        begin, end = bounds[:2] if len(bounds) > 1 else (0, bounds[0])
        step = bounds[2] if len(bounds) > 2 else 1
        counter = f"{name.id} of {node.lineno}"  # which the body does not change
        self._set(counter, begin)

        def test() -> Value:
            return self._math.compare("Lt", self._get(counter), end)

        def body() -> None:
            self._set(name.id, self._get(counter))
            self._block(node.body)

        def advance() -> None:
            self._set(counter, self._math.binary("Add", self._get(counter), step))

        self._loop(test, body, advance)

    def _loop(
        self, test: Callable[[], Value], body: Sequence[ast.stmt] | Callable[[], None],
        advance: Callable[[], None],
    ) -> None:  # fmt: skip
        blocks = [self._builder.append_basic_block() for _ in range(4)]
        start, inside, following, after = blocks
        self._builder.branch(start)
        self._builder.position_at_end(start)
        truth = test()
        self._builder.cbranch(I1(truth) if is_constant(truth) else truth, inside, after)
        self._builder.position_at_end(inside)
        self._loops.append((following, after))
        if callable(body):
            body()
        else:
            self._block(body)
        self._loops.pop()
        self._go(following)
        self._builder.position_at_end(following)
        advance()
        self._builder.branch(start)
        self._builder.position_at_end(after)

    def _do_Continue(self, _: ast.Continue) -> None:
        self._builder.branch(self._loops[-1][0])

    def _do_Break(self, _: ast.Break) -> None:
        self._builder.branch(self._loops[-1][1])

    def _do_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self._set("return", self._value(node.value))
        if self._end is None:
            self._builder.ret_void()
        else:
            self._builder.branch(self._end)

    # Expressions, by ast's names of them.

    def _value(self, node: ast.expr) -> Value:
        return getattr(self, f"_of_{type(node).__name__}", _refuse)(node)

    def _truth(self, node: ast.expr) -> Value:
        """Return whether an expression holds; parts of `and` and `or` may differ in type."""
        if isinstance(node, ast.BoolOp):
            return self._math.truth(self._joined(node, self._truth))
        return self._math.truth(self._value(node))

    def _of_Constant(self, node: ast.Constant) -> Value:
        return node.value

    def _of_Name(self, node: ast.Name) -> Value:
        if node.id in self._variables:
            return self._get(node.id)
        if node.id in self._constants:
            return self._constants[node.id]
        scope = self._function.__globals__
        if node.id not in scope and not hasattr(builtins, node.id):
            raise NotTranslated(f"{node.id}, which has no value")
        return scope[node.id] if node.id in scope else getattr(builtins, node.id)

    def _of_Attribute(self, node: ast.Attribute) -> Value:
        return getattr(self._value(node.value), node.attr)

    def _of_Tuple(self, node: ast.Tuple) -> Value:
        return tuple(map(self._value, node.elts))

    def _of_BinOp(self, node: ast.BinOp) -> Value:
        left, right = self._value(node.left), self._value(node.right)
        return self._math.binary(type(node.op).__name__, left, right)

    def _of_UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self._value(node.operand)
        if isinstance(node.op, ast.Not):
            return self._math.negate(value)
        return self._math.minus(value) if isinstance(node.op, ast.USub) else _refuse(node)

    def _of_Compare(self, node: ast.Compare) -> Value:
        values = [self._value(each) for each in (node.left, *node.comparators)]
        names = [type(each).__name__ for each in node.ops]
        result: Value = True
        for name, left, right in zip(names, values, values[1:], strict=False):
            each = self._math.compare(name, left, right)
            result = each if result is True else self._math.binary("BitAnd", result, each)
        return result

    def _of_BoolOp(self, node: ast.BoolOp) -> Value:
        return self._joined(node, self._value)

    def _joined(self, node: ast.BoolOp, evaluate: Callable[[ast.expr], Value]) -> Value:
        """Return the first value that decides, as Python does, or else the last one."""
        first, *remaining = node.values
        result = evaluate(first)
        for other in remaining:
            kept, truth = partial(_same, result), self._math.truth(result)
            rest = partial(evaluate, other)
            is_and = isinstance(node.op, ast.And)
            result = self._chosen(truth, rest, kept) if is_and else self._chosen(truth, kept, rest)
        return result

    def _of_IfExp(self, node: ast.IfExp) -> Value:
        truth = self._truth(node.test)
        return self._chosen(truth, lambda: self._value(node.body), lambda: self._value(node.orelse))

    def _chosen(self, truth: Value, yes: Callable[[], Value], no: Callable[[], Value]) -> Value:
        if is_constant(truth):
            return (yes if truth else no)()
        name = f"choice {len(self._variables)}"

        def write(value: Callable[[], Value]) -> None:
            self._set(name, self._math.widened(value()))

        self._branch(truth, lambda: write(yes), lambda: write(no))
        return self._get(name)

    def _of_Subscript(self, node: ast.Subscript) -> Value:
        value = self._value(node.value)
        if isinstance(value, tuple):
            return value[self._value(node.slice)]
        _, element = self._element(node, value)
        return element if isinstance(element, ArrayValue) else self._builder.load(element)

    def _element(self, node: ast.Subscript, array: Value = None) -> tuple[Any, Value]:
        array = self._value(node.value) if array is None else array
        if not isinstance(array, ArrayValue):
            raise NotTranslated(f"an element of {array}")
        indices = self._value(node.slice)
        indices = indices if isinstance(indices, tuple) else (indices,)
        return array, self._math.element(array, indices)

    def _of_Call(self, node: ast.Call) -> Value:
        function = self._value(node.func)
        values = tuple(map(self._value, node.args))
        if isinstance(function, CompiledOnly):
            return self._call(function, values)
        if function is len and isinstance(values[0], ArrayValue):
            return values[0].shape[0]
        if function in (min, max):
            return self._math.least(values, greatest=function is max)
        if function is int:
            return self._math.to_integer(*values)
        if function is np.float32:
            return self._math.to_float(*values)
        if function in _FLOAT_FUNCTIONS:
            return self._math.call_float(_FLOAT_FUNCTIONS[function], *values)
        if isinstance(function, type) and issubclass(function, tuple):
            return function(*values)
        raise NotTranslated(f"a call of {ast.unparse(node.func)}")

    def _call(self, called: CompiledOnly, values: tuple[Value, ...]) -> Value:
        if called.kinds is not None:
            numbers = map(self._math.number, values, called.kinds)
            return called.function(self._builder, *numbers)
        if not has_result(called.function):
            made = self._module.function(called.function, values)
            return self._builder.call(made, list(flatten(values)))
        end = self._builder.append_basic_block()
        frame = _Frame(self._module, self._builder, called.function, end)
        frame.run(values)
        self._builder.position_at_end(end)
        return frame.result()


def _same(value: Value) -> Value:
    return value


def _refuse(node: ast.AST) -> Any:
    raise NotTranslated(type(node).__name__)
