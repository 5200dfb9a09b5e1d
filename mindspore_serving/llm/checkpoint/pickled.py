"""Weights that torch.save has pickled (`pytorch_model.bin`, `*.pth`): tensors of a mapped file.

torch itself reads them, by its unpickler that builds tensors and containers and calls nothing else.
Does not know what the tensors mean.
"""

import pickle
from pathlib import Path
from typing import Any

from mindspore_serving import extras
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.safetensors import BITS, StoredTensor

INDEX = "pytorch_model.bin.index.json"
WHOLE = "pytorch_model.bin"
ZIP = b"PK\x03\x04"  # how files begin since torch 1.6; those before cannot be mapped
OLDEST = (2, 6)  # of torch, whose unpickler is safe
# torch's types -> the names of types here.
TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
    "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
WHAT_IT_RAISES = (
    RuntimeError, pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError,
    AttributeError, OSError, AssertionError,
)  # fmt: skip


def find_pickled(directory: Path) -> list[Path]:
    """The files of weights in `directory`, if all of them have to be read."""
    if (directory / WHOLE).is_file():
        return [directory / WHOLE]
    found = (*directory.glob("pytorch_model*.bin"), *directory.glob("*.pth"))
    return sorted(path for path in found if path.is_file())  # a pipe would wait for ever


def read_pickled(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file; what is no tensor is left out.

    Raises StartError naming the file: no torch or one that is too old, a file that is broken, of
    torch before 1.6, or of anything but tensors by name.
    """
    torch = _torch(path)
    if not path.is_file():
        raise StartError(f"{path} is missing, or no file")
    with path.open("rb") as file:
        beginning = file.read(len(ZIP))
    if beginning != ZIP:
        raise StartError(
            f"{path} is no file of torch 1.6 or later; weights in it have to be converted to "
            "safetensors first"
        )
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except WHAT_IT_RAISES as error:
        first = str(error).partition("\n")[0]
        raise StartError(f"{path} cannot be read as weights alone: {first}") from None
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict):
        raise StartError(f"{path} holds a {type(found).__name__}, expected tensors by name")
    tensors = {str(name): one for name, one in found.items() if isinstance(one, torch.Tensor)}
    return {name: _stored(torch, f"{path}: tensor {name!r}", one) for name, one in tensors.items()}


def _torch(path: Path) -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, f"{path}, which is pickled,")) from None
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < OLDEST:
        raise StartError(
            f"{path} is pickled, which torch {torch.__version__} does not read safely, but 2.6 "
            "and later: pip install -U torch"
        )
    return torch


def _stored(torch: Any, where: str, tensor: Any) -> StoredTensor:
    dtype = TYPES.get(str(tensor.dtype).removeprefix("torch."))
    is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
    if dtype is None or not is_plain:
        raise StartError(f"{where} is {tensor.dtype}, expected one of {', '.join(BITS)}, dense")
    size = tensor.numel() * tensor.element_size()
    if size > tensor.untyped_storage().nbytes():  # so that none is made large by strides of zero
        raise StartError(f"{where} has {size} bytes, which the file does not have")
    signed = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
    plain = tensor.detach().contiguous().reshape(-1).view(signed[tensor.element_size()])
    bits = plain.numpy().view(BITS[dtype]).reshape(tuple(tensor.shape))
    return StoredTensor(dtype, tuple(tensor.shape), bits)
