"""PyTorch model files: their kind, loading without pickle, and their signature.

Both kinds are programs: pickles are refused, but a program can still do harm.  Load only files that
you would run.
"""

import os
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mindspore_serving.backends.arguments import Argument, scalar
from mindspore_serving.backends.arguments import call as call_arguments
from mindspore_serving.backends.base import ModelSource
from mindspore_serving.backends.source import element_error, load_error
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import StartError

_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_FORBID = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
_PICKLED = "data/constants/opaque_obj"
_SCALARS = {"IntType": int, "FloatType": float, "BoolType": bool, "NumberType": float}
_SYMBOLS = {"SymIntArgument": int, "SymFloatArgument": float, "SymBoolArgument": bool}
_environment = threading.Lock()


@dataclass(frozen=True, slots=True)
class ExportedProgram:
    """A loaded file: `call` takes a value for each argument and returns the model's result."""

    call: Callable[[Sequence[Any]], Any]
    arguments: tuple[Argument, ...]
    outputs: tuple[TensorSpec, ...]
    writes_inputs: bool

    @property
    def signature(self) -> Signature:
        return Signature(tuple(argument.spec for argument in self.arguments), self.outputs)


def load_program(source: ModelSource, path: str, device: str) -> ExportedProgram:
    """Load `path` for `device`, "cpu" or "cuda:0".  Raises StartError naming file and cause."""
    load = _exported if _kind(source, path) == "exported" else _scripted
    try:
        return load(source, path, device)
    except StartError:
        raise
    except Exception as error:  # many kinds, depending on the fault in the file
        raise load_error(source, path, error) from error


def _kind(source: ModelSource, path: str) -> str:
    """Detect the kind of a file by the names in the archive below its top folder."""
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            head = file.read(4)
        if head == b"PK\x03\x04":
            text = "it is an archive without its end, so it is truncated: download or copy it again"
            raise load_error(source, path, text)
        what = "a pickle" if head[:1] == b"\x80" else "no model archive"
        raise load_error(source, path, _refusal(what))
    with zipfile.ZipFile(path) as archive:
        names = {name.partition("/")[2] or name for name in archive.namelist()}
    if names & {"archive_format", "serialized_exported_program.json"}:
        return "exported"
    if "constants.pkl" in names and any(name.startswith("code/") for name in names):
        return "scripted"
    what = "a pickle (written by torch.save)" if "data.pkl" in names else "no model archive"
    raise load_error(source, path, _refusal(what))


def _refusal(what: str) -> str:
    return (
        f"it is {what}; accepted are files written by torch.export.save (.pt2) and by "
        "torch.jit.save (TorchScript); a state dictionary is served with its code by "
        "serve net.py:Net --weights FILE"
    )


def _exported(source: ModelSource, path: str, device: str) -> ExportedProgram:
    import torch
    from torch.export.passes import move_to_device_pass
    from torch.utils import _pytree as pytree

    _refuse_objects(source, path)
    with _weights_only():
        program = torch.export.load(path)
    if device != "cpu":
        program = move_to_device_pass(program, device)
    module, in_spec = program.module(), program.call_spec.in_spec
    entries = _exported_inputs(source, path, program)
    values = _values(program)

    def call(inputs: Sequence[Any]) -> Any:
        remaining = iter(inputs)
        filled = [
            _typed(next(remaining), values[entry.spec.name]) if isinstance(entry, Argument)
            else entry
            for entry in entries
        ]  # fmt: skip
        args, kwargs = pytree.tree_unflatten(filled, in_spec)
        return module(*args, **kwargs)

    # Whether any operator works in place; its target is not traced.
    schemas = (getattr(node.target, "_schema", None) for node in program.graph.nodes)
    writes = any(schema is not None and schema.is_mutable for schema in schemas)
    arguments = tuple(entry for entry in entries if isinstance(entry, Argument))
    return ExportedProgram(call, arguments, _exported_outputs(program), writes)


def _typed(value: Any, example: Any) -> Any:
    """Return a tensor with the dtype of the program, which may be bfloat16; other values as is."""
    return value.to(example.dtype) if hasattr(value, "dtype") else value


def _refuse_objects(source: ModelSource, path: str) -> None:
    """Refuse an exported program with pickled Python objects, by the names in the archive."""
    import torch

    try:
        names = torch._C.PyTorchFileReader(path).get_all_records()
    except RuntimeError:  # the layout before PyTorch 2.7, which has no such objects
        return
    for name in names:
        if _PICKLED in name:
            raise load_error(source, path, f"it contains a pickled Python object, {name}")


@contextmanager
def _weights_only() -> Iterator[None]:
    """Make `torch.load` refuse all but tensors; by default `torch.export.load` allows more."""
    with _environment:
        before = {name: os.environ.pop(name, None) for name in (_FORCE, _FORBID)}
        os.environ[_FORCE] = "1"
        try:
            yield
        finally:
            del os.environ[_FORCE]
            os.environ.update({name: old for name, old in before.items() if old is not None})


def _values(program: Any) -> dict[str, Any]:
    """Return the values of the nodes of an exported program, by name."""
    return {node.name: node.meta.get("val") for node in program.graph.nodes}


def _exported_inputs(source: ModelSource, path: str, program: Any) -> list[Any]:
    """Return what fills each input of the program: an `Argument`, or the constant of its export."""
    from torch.export.graph_signature import ConstantArgument, InputKind

    values = _values(program)
    entries: list[Any] = []
    inputs = program.graph_signature.input_specs
    for entry in (spec.arg for spec in inputs if spec.kind is InputKind.USER_INPUT):
        if isinstance(entry, ConstantArgument):
            entries.append(entry.value)
            continue
        kind = _SYMBOLS.get(type(entry).__name__)
        if kind is not None:
            entries.append(scalar(str(entry.name), kind))
            continue
        value = values.get(entry.name)
        spec = _spec(str(entry.name), value)
        if spec is None or spec.dtype is None:
            shown = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
            raise element_error(source, path, len(entries), name=str(entry.name), kind=shown)
        entries.append(Argument(replace(spec, max_rows=_max_rows(program, value))))
    return entries


def _exported_outputs(program: Any) -> tuple[TensorSpec, ...]:
    values = _values(program)
    outputs = program.graph_signature.user_outputs
    names, spec = [f"output{i}" for i in range(len(outputs))], program.call_spec.out_spec
    if spec.type is dict and len(spec.context) == len(outputs):  # a flat dict of tensors
        names = [str(key) for key in spec.context]
    return tuple(
        _spec(name, values.get(node)) or TensorSpec(name, None, None)
        for name, node in zip(names, outputs, strict=True)
    )


def _max_rows(program: Any, value: Any) -> int:
    """Return the `max` of the first dimension's `Dim`; 0 without one."""
    first = value.shape[0] if value.ndim else 0
    symbol = first.node.expr if not isinstance(first, int) else None
    limits = program.range_constraints.get(symbol)
    return int(limits.upper) if limits is not None and limits.upper.is_Integer else 0


def _spec(name: str, value: Any) -> TensorSpec | None:
    """Return the spec of a tensor, None for other values; dtype None if numpy has no such type."""
    import torch

    if not isinstance(value, torch.Tensor):
        return None
    dtype = value.dtype
    if dtype == torch.bfloat16:
        dtype = torch.float32  # the backend takes and returns bfloat16 as float32
    try:
        kind = torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        kind = None
    # `int` of a symbolic size would make it static.
    shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    symbols = tuple("" if isinstance(size, int) else str(size) for size in value.shape)
    return TensorSpec(name, kind, shape, symbols=symbols)


def _scripted(source: ModelSource, path: str, device: str) -> ExportedProgram:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript itself is deprecated
        module = torch.jit.load(path, map_location=device).eval()
    schema = module.forward.schema
    arguments = []
    is_positional = True
    for index, argument in enumerate(schema.arguments[1:]):
        entry = _scripted_argument(argument)
        if entry is not None:
            arguments.append(replace(entry, is_positional=is_positional))
        elif argument.has_default_value():
            is_positional = False  # it is left at its default
        else:
            kind = str(argument.type)
            raise element_error(source, path, index, name=argument.name, kind=kind)
    names = [f"output{i}" for i in range(_count(schema.returns[0].type))]
    outputs = tuple(TensorSpec(name, None, None) for name in names)
    reset = getattr(module, "reset_states", None)
    takes_nothing = reset is not None and all(
        argument.has_default_value() for argument in reset.schema.arguments[1:]
    )

    def run(values: Sequence[Any]) -> Any:
        if reset is not None and takes_nothing:
            reset()  # a request does not depend on those before it
        return call_arguments(module, arguments, values)

    return ExportedProgram(run, tuple(arguments), outputs, True)


def _scripted_argument(argument: Any) -> Argument | None:
    """Return the argument of a TorchScript schema; None of another type than requests carry."""
    kind = argument.type
    may_be_none = kind.kind() == "OptionalType"
    if may_be_none:
        kind = kind.getElementType()
    default = argument.default_value
    is_optional = argument.has_default_value()
    if kind.kind() == "TensorType" and default is None:
        return Argument(TensorSpec(argument.name, None, None, is_optional=is_optional))
    if kind.kind() in _SCALARS and (default is None or isinstance(default, int | float)):
        return scalar(
            argument.name, _SCALARS[kind.kind()], is_optional=is_optional, default=default
        )
    return None


def _count(kind: Any) -> int:
    """Return the number of tensors in a TorchScript type; 0 if only a run can show it."""
    if kind.kind() == "TensorType":
        return 1
    if kind.kind() == "TupleType":
        counts = [_count(element) for element in kind.elements()]
        return sum(counts) if all(counts) else 0
    return 0


def to_numpy(leaf: Any) -> "np.ndarray[Any, Any]":
    """Convert a tensor or number of a result to an array on the CPU; bfloat16 becomes float32."""
    import torch

    if not isinstance(leaf, torch.Tensor):
        return np.asarray(leaf)
    tensor = leaf.float() if leaf.dtype == torch.bfloat16 else leaf
    return np.asarray(tensor.detach().cpu())
