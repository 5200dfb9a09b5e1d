"""Tensors of Triton's config.pbtxt: inputs, outputs and the samples of model_warmup."""

import math
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from mindspore_serving.core.declaration import WarmUpInput, WarmUpSample
from mindspore_serving.core.dtype import TEXT
from mindspore_serving.core.value import TensorSpec
from mindspore_serving.errors import StartError
from mindspore_serving.proto import triton_model_pb2 as pb
from mindspore_serving.servable.foreign.reading import read_text

MAX_SAMPLE_SIZE = 1 << 30  # bytes of an input of model_warmup, with its batch
MAX_LABELS_SIZE = 1 << 20  # bytes of a file of labels
_DIRECTORY = "warmup"  # of the files of samples, beside the versions
_FLOATS = {pb.TYPE_FP16: "float16", pb.TYPE_FP32: "float32", pb.TYPE_FP64: "float64"}
_DTYPES: dict[int, "np.dtype[Any]"] = {
    pb.TYPE_BOOL: np.dtype(bool),
    pb.TYPE_STRING: TEXT,
    pb.TYPE_BF16: np.dtype("float32"),  # as requests and models have it here
    **{number: np.dtype(name) for number, name in _FLOATS.items()},
    **{
        pb.DataType.Value(f"TYPE_{sign.upper()}INT{bits}"): np.dtype(f"{sign}int{bits}")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}


def to_spec(tensor: Any, *, is_batched: bool) -> TensorSpec:
    """Return the spec of an input or output; its shape is None if there are no `dims`."""
    dims = tuple(int(dim) for dim in tensor.dims)
    if any(dim < -1 for dim in dims):
        raise StartError(f"config.pbtxt: dims of {tensor.name!r:.100} are {list(dims)}")
    shape = (*((-1,) if is_batched else ()), *dims) if dims else None
    return TensorSpec(str(tensor.name), _DTYPES.get(tensor.data_type), shape)


def with_labels(spec: TensorSpec, label_file: str, directory: str) -> TensorSpec:
    """Return the spec of an output with the lines of its file of labels, if it has one.

    Raises StartError for a file that is not in the model's directory, or too large.
    """
    if not label_file:
        return spec
    path, root = os.path.join(directory, label_file), os.path.realpath(directory)
    if not os.path.realpath(path).startswith(root + os.sep) or not os.path.isfile(path):
        raise StartError(
            f"config.pbtxt: label_filename of {spec.name!r:.100} is {label_file!r:.100}, which is "
            f"no file in '{root}'"
        )
    return replace(spec, labels=tuple(read_text(path, MAX_LABELS_SIZE).splitlines()))


def to_samples(
    samples: Iterable[Any], directory: str, *, is_batched: bool
) -> tuple[WarmUpSample, ...]:
    """Return the samples of model_warmup.

    Raises StartError for one that cannot be made: of texts, too large, or without its file.
    """
    return tuple(_to_sample(sample, directory, is_batched=is_batched) for sample in samples)


def _to_sample(sample: Any, directory: str, *, is_batched: bool) -> WarmUpSample:
    inputs = {
        str(name): _to_input(sample, str(name), tensor, directory)
        for name, tensor in sorted(sample.inputs.items())
    }
    batch_size = max(sample.batch_size, 1) if is_batched else 0
    return WarmUpSample(str(sample.name), inputs, batch_size, max(sample.count, 1))


def _to_input(sample: Any, name: str, tensor: Any, directory: str) -> WarmUpInput:
    where = f"config.pbtxt: model_warmup {sample.name!r:.100}, input {name!r:.100}"
    dims = tuple(int(dim) for dim in tensor.dims)
    dtype = _DTYPES.get(tensor.data_type)
    if dtype is None or dtype == TEXT or any(dim < 1 for dim in dims):
        raise StartError(
            f"{where} has type {pb.DataType.Name(tensor.data_type)} and dims {list(dims)}, "
            "expected a type of numbers and sizes from 1"
        )
    size = math.prod(dims) * max(sample.batch_size, 1) * dtype.itemsize
    if size > MAX_SAMPLE_SIZE:
        raise StartError(f"{where} has {size} bytes, at most {MAX_SAMPLE_SIZE} are allowed")
    file = ""
    if tensor.WhichOneof("input_data_type") == "input_data_file":
        file = _sample_file(where, str(tensor.input_data_file), directory)
    is_random = bool(tensor.random_data)
    return WarmUpInput(dtype.name, dims, is_random=is_random, file=file)


def _sample_file(where: str, name: str, directory: str) -> str:
    path = os.path.join(directory, _DIRECTORY, name)
    root = os.path.realpath(os.path.join(directory, _DIRECTORY))
    if not os.path.realpath(path).startswith(root + os.sep) or not os.path.isfile(path):
        raise StartError(f"{where} names {name!r:.100}, which is no file in '{root}'")
    return path
