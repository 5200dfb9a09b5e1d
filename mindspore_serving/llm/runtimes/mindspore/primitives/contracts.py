"""Rules of what the device's kernels accept, and the check of specs and of real tensors.

MindSpore's front end compiles much that fails or computes nonsense on a device: int64 tables, masks
of another dtype, caches of another rank.  A contract has a shape and dtypes for each argument, and
rules for what is left.  Knows no MindSpore: it reads the shape and the name of the dtype of what
has them.  Not verified on hardware.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError

Size: TypeAlias = "int | None"  # None: dynamic
SOC_310P = "ascend310p"
SOCS_WITHOUT_BFLOAT16 = ("ascend910", "ascend310", "ascend310b", SOC_310P)
FLOATS = "float16 bfloat16"


@dataclass(frozen=True, slots=True)
class ArgumentSpec:
    """The shape, with None for what is dynamic, and dtype of an argument."""

    shape: tuple[Size, ...]
    dtype: str

    def __str__(self) -> str:
        sizes = ", ".join("any" if size is None else str(size) for size in self.shape)
        return f"{self.dtype} [{sizes}]"


@dataclass(frozen=True, slots=True)
class Accepted:
    """The shapes and dtypes of one argument.

    `dims` are shapes, divided by "|", of sizes divided by spaces: numbers, products ("H*D") of
    symbols and options of the primitive, or "..." before the others for any.  `dtypes` are names,
    and "=q" is that of argument q.
    """

    dims: str
    dtypes: str
    is_optional: bool = False

    def __str__(self) -> str:
        shapes = " or ".join(f"[{', '.join(each.split())}]" for each in self.dims.split("|"))
        dtypes = [f"as {name[1:]}" if name[0] == "=" else name for name in self.dtypes.split()]
        return f"{' or '.join(dtypes)} {shapes}{', or none' if self.is_optional else ''}"


@dataclass(frozen=True, slots=True)
class PrimitiveCall:
    """A call of a primitive as far as it is known.

    `sizes` has the symbols of the shapes and the options, `values` the arguments that are arrays.
    """

    sizes: dict[str, Any]
    specs: Mapping[str, ArgumentSpec]
    values: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    soc: str = ""

    def size(self, name: str) -> Any:
        return self.sizes.get(name)


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on `subject` beyond shapes and dtypes, and in words what it accepts."""

    accepts: str
    subject: str  # name of a size or of an argument
    holds: Callable[[PrimitiveCall], bool]


@dataclass(frozen=True, slots=True)
class Contract:
    """The arguments, in order, options and rules of a primitive.

    `on_310p` replaces arguments on that SoC.
    """

    arguments: Mapping[str, Accepted]
    options: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    on_310p: Mapping[str, Accepted] = field(default_factory=dict)


def spec_of(value: Any) -> ArgumentSpec:
    """Return the spec of an array, a tensor or a spec of either."""
    if isinstance(value, ArgumentSpec):
        return value
    shape = tuple(None if size is None or size < 0 else int(size) for size in value.shape)
    dtype = str(value.dtype).lower().removeprefix("mindspore.")
    return ArgumentSpec(shape, "qint4x2" if dtype == "int4" else dtype)  # a tensor's name of it


def problems(
    name: str,
    contract: Contract,
    arguments: Mapping[str, Any],
    *,
    options: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    soc: str = "",
) -> list[str]:
    """Return what is wrong with a call of primitive `name`, a sentence each.

    `arguments` are arrays, tensors or specs, or None; what is an array is also checked by value.
    `sizes` are symbols of the shapes that the caller knows, as the head dimension D.
    """
    options = options or {}
    unknown = sorted(set(options) - set(contract.options))
    if unknown:
        known = ", ".join(contract.options) or "none"
        return [f"{name} has no option {unknown[0]} on a device; it has: {known}"]
    specs = {key: spec_of(value) for key, value in arguments.items() if value is not None}
    values = {key: value for key, value in arguments.items() if isinstance(value, np.ndarray)}
    call = PrimitiveCall({**options, **(sizes or {}), "soc": soc}, specs, values, soc)
    expected = dict(contract.arguments)
    if soc == SOC_310P:
        expected |= contract.on_310p
    # Twice, as the first argument has sizes that a later one shows.
    errors = list(_wrong_arguments(expected, call)) or list(_wrong_arguments(expected, call))
    if not errors:
        errors = [
            f"{rule.subject} is {_shown(rule.subject, call)}; accepted: {rule.accepts}"
            for rule in (*contract.rules, *ON_310P)
            if not rule.holds(call)
        ]
    return [f"{name}: {error}" for error in errors]


def check(name: str, contract: Contract, arguments: Mapping[str, Any], **known: Any) -> None:
    """Raise StartError with the `problems` of a call, if it has any."""
    errors = problems(name, contract, arguments, **known)
    if errors:
        raise StartError("; ".join(errors))


def _shown(name: str, call: PrimitiveCall) -> str:
    if name in call.specs:
        return str(call.specs[name])
    return str(call.size(name))


def _wrong_arguments(expected: Mapping[str, Accepted], call: PrimitiveCall) -> Iterator[str]:
    for name in sorted(set(call.specs) - set(expected)):
        yield f"there is no argument {name}; it has: {', '.join(expected)}"
    for name, argument in expected.items():
        spec = call.specs.get(name)
        if spec is None:
            if not argument.is_optional:
                yield f"{name} is missing; accepted: {argument}"
            continue
        is_shaped = any(_fits(shape, spec.shape, call.sizes) for shape in argument.dims.split("|"))
        if not is_shaped or spec.dtype not in _dtypes(argument, call):
            yield f"{name} is {spec}; accepted: {argument}{_known(argument, call)}"


def _known(argument: Accepted, call: PrimitiveCall) -> str:
    """Return the sizes in an argument's shape that are known, for its message."""
    symbols = argument.dims.replace("*", " ").replace("|", " ").split()
    sizes = [f"{each}={call.sizes[each]}" for each in dict.fromkeys(symbols) if each in call.sizes]
    return f" with {', '.join(sizes)}" if sizes else ""


def _dtypes(argument: Accepted, call: PrimitiveCall) -> set[str]:
    return {
        call.specs[name[1:]].dtype if name[0] == "=" else name
        for name in argument.dtypes.split()
        if name[0] != "=" or name[1:] in call.specs
    }


def _fits(dims: str, shape: tuple[Size, ...], sizes: dict[str, Any]) -> bool:
    """Return whether a shape is that of `dims`, and add the symbols that it shows to `sizes`."""
    names = dims.split()
    if names[0] == "...":
        names = names[1:]
        shape = shape[-len(names) :]
    if len(names) != len(shape):
        return False
    learned = dict(sizes)
    for name, size in zip(names, shape, strict=True):
        if size is not None and not _fits_size(name.split("*"), size, learned):
            return False
    sizes.update(learned)
    return True


def _fits_size(factors: list[str], size: int, sizes: dict[str, Any]) -> bool:
    """Return whether `size` is the product; a single unknown factor becomes known."""
    unknown = []
    for factor in factors:
        value = int(factor) if factor.isdigit() else sizes.get(factor)
        if value is None:
            unknown.append(factor)
        elif size % value:
            return False
        else:
            size //= value
    if len(unknown) == 1:
        sizes[unknown[0]] = size
    return bool(unknown) or size == 1


def at_most(name: str, limit: int) -> Rule:
    """Return the rule that a size is at most `limit`."""
    return Rule(f"at most {limit}", name, lambda call: (call.size(name) or 0) <= limit)


def multiple_of(name: str, divisor: int) -> Rule:
    """Return the rule that a size is a multiple of `divisor`."""
    return Rule(f"a multiple of {divisor}", name, lambda call: not (call.size(name) or 0) % divisor)


def one_of(name: str, *choices: Any) -> Rule:
    """Return the rule that an option is one of `choices`."""
    text = " or ".join(map(str, choices))
    return Rule(text, name, lambda call: call.size(name) in (None, *choices))


def values(
    name: str, accepts: str, holds: Callable[[PrimitiveCall, npt.NDArray[Any]], bool]
) -> Rule:
    """Return a rule about the values of an argument; one that is no array passes."""
    return Rule(
        accepts, name, lambda call: name not in call.values or holds(call, call.values[name])
    )


ON_310P = (
    Rule(
        f"no bfloat16 on {SOC_310P}; use float16",
        "soc",
        lambda call: (
            call.soc != SOC_310P or all(s.dtype != "bfloat16" for s in call.specs.values())
        ),
    ),
)


def has_bfloat16(soc: str) -> bool:
    """Return whether `soc`, by MindSpore's name, computes in bfloat16."""
    return soc not in SOCS_WITHOUT_BFLOAT16
