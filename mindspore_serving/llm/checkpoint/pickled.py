"""Weights pickled by torch.save (`pytorch_model.bin`, `*.pth`): tensors of a mapped file.

torch reads them with `weights_only`, whose unpickler builds only tensors and containers. Does not
know the meaning of the tensors.
"""

import pickle
from pathlib import Path
from typing import Any

from mindspore_serving import extras, file_check
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.safetensors import BITS, StoredTensor

INDEX = "pytorch_model.bin.index.json"
SINGLE_FILE = "pytorch_model.bin"
ZIP = b"PK\x03\x04"  # first bytes of files since torch 1.6; older ones cannot be mapped
MIN_TORCH = (2, 6)  # earlier unpicklers are not safe
# torch's dtypes -> those of safetensors.
TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
    "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
UNPICKLING_ERRORS = (
    RuntimeError, pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError,
    AttributeError, OSError, AssertionError,
)  # fmt: skip


def find_pickled(directory: Path) -> list[Path]:
    """Return the files of weights in `directory` that have no index."""
    if (directory / SINGLE_FILE).is_file():
        return [directory / SINGLE_FILE]
    paths = (*directory.glob("pytorch_model*.bin"), *directory.glob("*.pth"))
    return sorted(path for path in paths if path.is_file())  # reading a pipe would block


def read_pickled(path: Path) -> dict[str, StoredTensor]:
    """Read the tensors of one file; other values are left out.

    Raises StartError naming the file: torch is missing or too old, or the file is broken, older
    than torch 1.6, or holds anything but tensors by name.
    """
    torch = _torch(path)
    if not path.is_file():
        raise StartError(f"{path} is missing or no regular file{file_check.unfinished(path)}")
    with path.open("rb") as file:
        beginning = file.read(len(ZIP))
    if beginning != ZIP:
        why = file_check.why_no_model(path)
        raise StartError(
            f"{path} {why}"
            if why
            else f"{path} is older than torch 1.6 or no file of torch; convert its weights to "
            "safetensors first"
        )
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UNPICKLING_ERRORS as error:
        first = str(error).partition("\n")[0]
        raise StartError(f"{path} cannot be read with weights_only: {first}") from None
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict):
        raise StartError(f"{path} holds a {type(content).__name__}, expected tensors by name")
    tensors = {str(name): x for name, x in content.items() if isinstance(x, torch.Tensor)}
    return {name: _stored(torch, f"{path}: tensor {name!r}", x) for name, x in tensors.items()}


def _torch(path: Path) -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, f"{path}, which is pickled,")) from None
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < MIN_TORCH:
        raise StartError(
            f"{path} is pickled, which torch {torch.__version__} cannot read safely; expected "
            "torch 2.6 or later: pip install -U torch"
        )
    return torch


def _stored(torch: Any, label: str, tensor: Any) -> StoredTensor:
    dtype = TYPES.get(str(tensor.dtype).removeprefix("torch."))
    is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
    if dtype is None or not is_plain:
        raise StartError(f"{label} is {tensor.dtype}, expected one of {', '.join(BITS)}, dense")
    size = tensor.numel() * tensor.element_size()
    if size > tensor.untyped_storage().nbytes():  # strides of 0 could expand it
        raise StartError(f"{label} needs {size} bytes, more than the file has")
    signed = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
    plain = tensor.detach().contiguous().reshape(-1).view(signed[tensor.element_size()])
    bits = plain.numpy().view(BITS[dtype]).reshape(tuple(tensor.shape))
    return StoredTensor(dtype, tuple(tensor.shape), bits)
