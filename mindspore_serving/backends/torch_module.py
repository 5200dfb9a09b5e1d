"""Networks of PyTorch: an `nn.Module` of the operator's code with its state dictionary.

Weights are read without unpickling: by safetensors, or by torch with `weights_only`.
"""

import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from mindspore_serving.backends.arguments import (
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
from mindspore_serving.backends.torch import TorchBackend, apply_options, device_of, to_tensor
from mindspore_serving.backends.torch_files import to_numpy
from mindspore_serving.backends.weights import match_weights
from mindspore_serving.core.network import GRAPH
from mindspore_serving.errors import StageFailed, StartError

_NESTED = ("state_dict", "model_state_dict", "model")  # where checkpoints of trainers have weights


class ModuleBackend:
    """A network of PyTorch, from a class or function and a file of weights."""

    def __init__(self, module: Any, source: ModelSource, device: str) -> None:
        self._module = module
        self._device = device
        try:
            self._arguments = read_arguments(module.forward, source.spec.inputs)
        except StartError as error:
            raise failure(source, f"its forward: {error}") from None
        signature = described(
            source,
            [argument.spec for argument in self._arguments],
            hinted_outputs(module.forward),
            self._call,
            to_numpy,
        )
        self.signature = (check_signature(source, source.spec.key, signature),)

    @classmethod
    def device_types(cls) -> tuple[str, ...]:
        """Return "gpu" if CUDA works here, and "cpu"."""
        return TorchBackend.device_types()

    @classmethod
    def load(cls, source: ModelSource) -> "ModuleBackend":
        """Make the network, load its weights and warm it up."""
        import torch

        check_single(source)
        if source.spec.mode == GRAPH:
            raise failure(
                source,
                "networks of PyTorch run as Python, in the mode pynative: for a graph, export the "
                "network by torch.export and serve that file",
            )
        device = device_of(source)
        apply_options(source)
        module = make_network(source, torch.nn.Module, "torch.nn.Module").eval()
        for path in source.paths:
            _load_weights(source, path, module)
        return cls(module.to(device), source, device)

    def run(self, inputs: Sequence[Array], subgraph: int = 0) -> list[Array]:
        """Run the network; see `Backend.run`.  `subgraph` is 0."""
        return [to_numpy(leaf) for _, leaf in named_leaves(self._call(inputs))]

    def close(self) -> None:
        """Drop the network and its weights."""
        self._module = None

    def _call(self, inputs: Sequence[Array]) -> Any:
        import torch

        try:
            values = [
                argument.value_of(array, lambda array: to_tensor(array, self._device, True))
                for argument, array in zip(self._arguments, inputs, strict=True)
            ]
            with torch.inference_mode():
                return call(self._module, self._arguments, values)
        except Exception as error:  # the code raises whatever it was written to raise
            raise StageFailed(error_text(error)) from error


def _load_weights(source: ModelSource, path: str, module: Any) -> None:
    weights = _read_weights(source, path)
    state = module.state_dict()
    tied = _tied(state, weights)
    network = {name: tuple(t.shape) for name, t in state.items() if name not in tied}
    try:
        names = match_weights(network, {name: tuple(t.shape) for name, t in weights.items()})
        module.load_state_dict({n: weights[known] for n, known in names.items()}, strict=False)
    except (StartError, RuntimeError) as error:
        raise load_error(source, path, error) from None


def _tied(state: Mapping[str, Any], weights: Mapping[str, Any]) -> set[str]:
    """Return the names of tensors that the file lacks, and that are others of the network.

    safetensors writes a tensor with two names once.
    """
    kept = {(t.data_ptr(), t.shape) for name, t in state.items() if name in weights}
    return {
        name
        for name, tensor in state.items()
        if name not in weights and tensor.numel() and (tensor.data_ptr(), tensor.shape) in kept
    }


def _read_weights(source: ModelSource, path: str) -> dict[str, Any]:
    import torch

    try:
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file

            return dict(load_file(path))
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # many kinds, depending on the fault in the file
        raise load_error(source, path, _refusal(path, error)) from error
    nested = (loaded[key] for key in _NESTED if isinstance(loaded, dict) and key in loaded)
    weights = next((inner for inner in nested if isinstance(inner, Mapping)), loaded)
    if not isinstance(weights, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor)
        for name, tensor in weights.items()
    ):
        raise load_error(
            source, path, "it holds no dictionary of tensors by name: save net.state_dict()"
        )
    return dict(weights)


def _refusal(path: str, error: Exception) -> str:
    """Return why the file is no checkpoint, without torch's advice to unpickle it."""
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            is_pickle = file.read(1) == b"\x80"
        if not is_pickle and not path.endswith(".safetensors"):
            return (
                "it is no checkpoint of PyTorch: expected .safetensors, or a file of "
                "torch.save(net.state_dict(), ...)"
            )
    text = error_text(error)
    if "weights_only" not in text:
        return text
    with_code = "contains Python objects besides tensors, or a program, which are not loaded"
    return f"it {with_code}: save net.state_dict()"
