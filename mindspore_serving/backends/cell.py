"""Networks of MindSpore: an `nn.Cell` of the operator's code with its checkpoint.

The graph is compiled once for all shapes; without known shapes, or in PyNative mode, the code runs
as Python.  Knows no batches.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mindspore_serving import log
from mindspore_serving.backends import mindir
from mindspore_serving.backends.arguments import (
    Argument,
    call,
    hinted_outputs,
    named_leaves,
    read_arguments,
)
from mindspore_serving.backends.base import Array, ModelSource
from mindspore_serving.backends.network import (
    check_single,
    described,
    failure,
    make_network,
)
from mindspore_serving.backends.source import check_signature, error_text, load_error
from mindspore_serving.backends.weights import match_weights
from mindspore_serving.core.network import GRAPH, PYNATIVE
from mindspore_serving.core.value import TensorSpec
from mindspore_serving.errors import StageFailed, StartError


class CellBackend:
    """A network of MindSpore, from a class or function and a file of weights."""

    def __init__(self, mindspore: Any, cell: Any, source: ModelSource) -> None:
        self._mindspore = mindspore
        self._cell = cell
        try:
            self._arguments = _with_inputs(
                mindspore, read_arguments(cell.construct, source.spec.inputs), cell
            )
        except StartError as error:
            raise failure(source, f"its construct: {error}") from None
        self._is_graph = _is_graph(source, self._arguments)
        outputs = hinted_outputs(cell.construct)
        if self._is_graph:
            self._compile()
        signature = described(
            source,
            [argument.spec for argument in self._arguments],
            outputs,
            self._call,
            mindir.to_array,
        )
        self.signature = (check_signature(source, source.spec.key, signature),)

    @classmethod
    def device_types(cls) -> tuple[str, ...]:
        """Return the device types that the installed MindSpore can use."""
        return mindir.MindirBackend.device_types()

    @classmethod
    def load(cls, source: ModelSource) -> "CellBackend":
        """Make the network, load its weights, compile it and warm it up."""
        check_single(source)
        mindspore = mindir.import_mindspore()
        with mindir.LOCK:
            mindir.set_device(mindspore, source)
            mindir.apply_options(mindspore, source)
            cell = make_network(source, mindspore.nn.Cell, "mindspore.nn.Cell")
            cell.set_train(False)
            if source.device_type == "cpu" and _has_convolution(cell):
                os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")  # see MindirBackend.load
            for path in source.paths:
                _load_weights(mindspore, source, path, cell)
            return cls(mindspore, cell, source)

    def run(self, inputs: Sequence[Array], subgraph: int = 0) -> list[Array]:
        """Run the network; see `Backend.run`.  `subgraph` is 0."""
        with mindir.LOCK:
            return [mindir.to_array(leaf) for _, leaf in named_leaves(self._call(inputs))]

    def close(self) -> None:
        """Drop the network and its weights."""
        with mindir.LOCK:
            self._cell = None

    def _call(self, inputs: Sequence[Array]) -> Any:
        try:
            values = [
                self._argument(argument, array)
                for argument, array in zip(self._arguments, inputs, strict=True)
            ]
            return call(self._cell, self._arguments, values)
        except Exception as error:  # the code raises whatever it was written to raise
            raise StageFailed(error_text(error)) from error

    def _argument(self, argument: Argument, array: Array) -> Any:
        value = argument.value_of(array, self._tensor)
        if self._is_graph and type(value) in (int, float):
            return self._mindspore.mutable(value)  # a constant would be compiled for each value
        return value

    def _tensor(self, array: Array) -> Any:
        # The code may write to its inputs, which belong to the caller.
        return self._mindspore.Tensor.from_numpy(array.copy())

    def _compile(self) -> None:
        """Have the graph compiled at its first run, once for all shapes."""
        mindspore, cell = self._mindspore, self._cell
        cell.set_inputs(
            *(
                _open_tensor(mindspore, argument.spec)
                if argument.kind is None
                else mindspore.mutable(argument.kind(1))
                for argument in self._arguments
            )
        )
        cell.construct = mindspore.jit(cell.construct)


def _is_graph(source: ModelSource, arguments: Sequence[Argument]) -> bool:
    """Return whether the network is compiled; if the operator wants that, raise StartError."""
    if source.spec.mode == PYNATIVE:
        return False
    obstacle = ""
    for argument in arguments:
        spec = argument.spec
        if argument.kind is bool or (argument.kind and spec.shape is None):
            obstacle = (
                f"argument '{spec.name}' may be None or a bool, which a graph has as constant"
            )
        elif spec.shape is None or spec.dtype is None:
            obstacle = (
                f"the type and shape of '{spec.name}' are unknown: describe it by serve --inputs "
                f"'{spec.name}=float32[-1,3,224,224]', inputs= of declare_model or set_inputs"
            )
    if obstacle and source.spec.mode == GRAPH:
        raise failure(source, f"it cannot be compiled to a graph: {obstacle}")
    if obstacle:
        log.warning("Network '%s' runs in PyNative mode: %s", source.spec.key, obstacle)
    return not obstacle


def _with_inputs(
    mindspore: Any, arguments: tuple[Argument, ...], cell: Any
) -> tuple[Argument, ...]:
    """Return `arguments` with what the code set by `set_inputs`, where nothing else is known."""
    tensors = cell.get_inputs() or ()
    if len(tensors) != len(arguments):
        return arguments
    return tuple(
        replace(argument, spec=_spec(argument.spec, tensor))
        if argument.spec.shape is None and isinstance(tensor, mindspore.Tensor)
        else argument
        for argument, tensor in zip(arguments, tensors, strict=True)
    )


def _spec(spec: TensorSpec, tensor: Any) -> TensorSpec:
    name = str(tensor.dtype).lower()
    shape = tuple(-1 if dim is None or dim < 0 else int(dim) for dim in tensor.shape)
    is_open = any(dim is not None and dim < -1 for dim in tensor.shape)  # not even the rank
    dtype = np.dtype("float32" if name == "bfloat16" else name)
    return replace(spec, dtype=dtype, shape=None if is_open else shape)


def _open_tensor(mindspore: Any, spec: TensorSpec) -> Any:
    dtype = mindspore.Tensor.from_numpy(np.zeros(1, spec.dtype)).dtype
    return mindspore.Tensor(shape=[None if d < 0 else d for d in spec.shape or ()], dtype=dtype)


def _has_convolution(cell: Any) -> bool:
    return any("Conv" in type(part).__name__ for _, part in cell.cells_and_names())


def _load_weights(mindspore: Any, source: ModelSource, path: str, cell: Any) -> None:
    """Load the checkpoint at `path`, protobuf or safetensors: neither can contain code."""
    is_safetensors = path.endswith(".safetensors")
    key: dict[str, Any] = {"format": "safetensors" if is_safetensors else "ckpt"}
    if source.dec_key is not None:
        key |= {"dec_key": source.dec_key, "dec_mode": source.dec_mode}
    try:
        loaded = mindspore.load_checkpoint(path, **key)
    except Exception as error:
        raise load_error(source, path, error) from error
    network = {name: tuple(value.shape) for name, value in cell.parameters_dict().items()}
    try:
        names = match_weights(network, {name: tuple(p.shape) for name, p in loaded.items()})
    except StartError as error:
        raise load_error(source, path, error) from None
    parameters = {name: loaded[known] for name, known in names.items()}
    try:
        mindspore.load_param_into_net(cell, parameters, strict_load=True)
    except Exception as error:
        raise load_error(source, path, error) from error
