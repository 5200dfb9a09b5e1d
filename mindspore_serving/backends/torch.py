"""PyTorch programs, exported (.pt2) or TorchScript (.pt), on CPU or an NVIDIA GPU.

Knows no batches, and no file formats: see `torch_files`.
"""

from collections.abc import Sequence
from typing import Any

from mindspore_serving.backends.base import Array, ModelSource
from mindspore_serving.backends.source import (
    SourceOptions,
    check_files,
    check_signature,
    error_text,
    warm_up,
)
from mindspore_serving.backends.torch_files import ExportedProgram, load_program, to_numpy
from mindspore_serving.core.value import Signature
from mindspore_serving.errors import StageFailed, StartError


class TorchBackend:
    """A PyTorch model, one program per file."""

    def __init__(
        self, programs: list[ExportedProgram], signature: tuple[Signature, ...], device: str
    ) -> None:
        self._programs = programs
        self.signature = signature  # one per file; for TorchScript possibly without outputs
        self._device = device

    @classmethod
    def device_types(cls) -> tuple[str, ...]:
        """Return "gpu" if CUDA works here, and "cpu"."""
        import torch

        return ("gpu", "cpu") if torch.cuda.is_available() else ("cpu",)

    @classmethod
    def load(cls, source: ModelSource) -> "TorchBackend":
        """Load every file and warm up those with known shapes; TorchScript files have none."""
        check_files(source)
        device = device_of(source)
        apply_options(source)
        programs = [load_program(source, path, device) for path in source.paths]
        signature = tuple(
            warm_up(
                lambda arrays, program=program: _run(program, arrays, device),  # type: ignore[misc]
                check_signature(source, path, program.signature),
                source,
                path,
            )
            for path, program in zip(source.paths, programs, strict=True)
        )
        return cls(programs, signature, device)

    def run(self, inputs: Sequence[Array], subgraph: int = 0) -> list[Array]:
        """Run a program; see `Backend.run`.  The results may also alias `inputs`."""
        return _run(self._programs[subgraph], inputs, self._device)

    def close(self) -> None:
        """Drop the programs and release the cached device memory."""
        self._programs.clear()
        if self._device != "cpu":
            import torch

            torch.cuda.empty_cache()


def device_of(source: ModelSource) -> str:
    """Return PyTorch's name of the device of `source`.  Raises StartError if it has none such."""
    import torch

    if source.device_type == "cpu":
        return "cpu"
    if source.device_type != "gpu":
        raise StartError(
            f"Load model '{source.spec.key}' failed: format pytorch runs on CPU and GPU, "
            f"not on device type {source.device_type}"
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if source.device_id >= count:
        raise StartError(
            f"Load model '{source.spec.key}' failed: PyTorch sees {count} GPUs, "
            f"but device id {source.device_id} was requested: expected an id below {count}"
        )
    return f"cuda:{source.device_id}"


def apply_options(source: ModelSource) -> None:
    """Apply the number of threads, which is that of the process."""
    import torch

    options = SourceOptions(source)
    num_threads = options.take("thread_num")
    if num_threads is not None:
        torch.set_num_threads(num_threads)  # of the process
    options.report_ignored()


def _run(program: ExportedProgram, inputs: Sequence[Array], device: str) -> list[Array]:
    import torch
    from torch.utils import _pytree as pytree

    try:
        with torch.inference_mode():
            values = [
                argument.value_of(
                    array, lambda item: to_tensor(item, device, program.writes_inputs)
                )
                for argument, array in zip(program.arguments, inputs, strict=True)
            ]
            return [to_numpy(leaf) for leaf in pytree.tree_leaves(program.call(values))]
    except Exception as error:  # a program raises whatever it was written to raise
        raise StageFailed(error_text(error)) from error


def to_tensor(array: Array, device: str, must_copy: bool) -> Any:
    """Return a tensor over the array's memory, or over a copy if the program may write to it.

    A read-only array is copied too: PyTorch has no read-only tensors.
    """
    import torch

    if must_copy or not array.flags.writeable or not array.flags.aligned:
        array = array.copy()
    return torch.from_numpy(array).to(device)
