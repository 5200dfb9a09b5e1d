"""Quantisation of models on a CPU to int8 by NNCF, calibrated with data of the user.

The quantised model is OpenVINO IR, which the server and other tools read.  Weights get a scale for
each output channel, activations one for each tensor.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving import extras
from mindspore_serving.backends.openvino_files import check_target, open_file, save
from mindspore_serving.errors import InvalidInputs, StartError

SAMPLES = 300  # instances that calibrate, as NNCF advises
LABELS = "labels"
Arrays: TypeAlias = "dict[str, npt.NDArray[Any]]"


@dataclass(frozen=True, slots=True)
class Answers:
    """Outputs of a model for the data: the first one, and the time of an instance in ms."""

    first: "npt.NDArray[Any]"
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Float and quantised model on the same data.

    `accuracy` is the share of right labels of both, None without labels; `agreement` the share of
    instances whose largest output is the same, None if an instance has one output.
    """

    num_instances: int
    milliseconds: tuple[float, float]
    relative_error: float  # root mean square of the differences, by that of the float outputs
    accuracy: tuple[float, float] | None
    agreement: float | None

    def summary(self) -> str:
        """Return the comparison as lines for people."""
        before, after = self.milliseconds
        lines = [
            f"{self.num_instances} instances: {before:.2f} ms each before, {after:.2f} ms after "
            f"({before / after:.2f} times as fast, one at a time)",
            f"relative error of the first output: {self.relative_error:.4f}",
        ]
        if self.agreement is not None:
            lines.append(f"largest output is the same: {self.agreement:.2%}")
        if self.accuracy is not None:
            lines.append(
                f"accuracy by labels: {self.accuracy[0]:.2%} before, {self.accuracy[1]:.2%} after"
            )
        return "\n".join(lines)


def read_data(path: str) -> tuple[Arrays, "npt.NDArray[Any] | None"]:
    """Return the arrays of an .npz file by input, with an instance per row, and its labels.

    Raises InvalidInputs for another file, a pickle, and arrays of different lengths.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInputs(
            f"cannot read '{path}', expected an .npz file (numpy.savez) with an array for each "
            f"input, one row per instance, and optionally '{LABELS}': {reason}"
        ) from error
    if len({array.shape[:1] for array in arrays.values()}) != 1 or not all(
        array.ndim and len(array) for array in arrays.values()
    ):
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise InvalidInputs(
            f"'{path}' has {shapes or 'no array'}; all arrays need the same number of rows, at "
            "least one"
        )
    return arrays, arrays.pop(LABELS, None)


def quantize(source: str, target: str, data: str, num_samples: int = SAMPLES) -> Comparison:
    """Write the quantised model of `source` as OpenVINO IR, and compare both on the data.

    `num_samples` instances calibrate; all are compared.  Raises InvalidInputs and StartError.
    """
    check_target(Path(target))
    model, _weights = open_file(source)
    arrays, labels = read_data(data)
    try:
        import nncf
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, "quantizing a model")) from None
    logging.getLogger("nncf").setLevel(logging.ERROR)
    rows = list(_rows(model, arrays))
    before = _run(model, rows)
    try:
        count = max(1, num_samples * len(rows) // len(before.first))  # batches
        quantized = nncf.quantize(
            model, nncf.Dataset(rows[:count]), subset_size=min(count, len(rows))
        )
    except (RuntimeError, nncf.ValidationError) as error:
        raise StartError(f"'{source}' cannot be quantised: {error}") from error
    comparison = compare(before, _run(quantized, rows), labels)
    save(quantized, Path(target))
    return comparison


def compare(
    before: Answers, after: Answers, labels: "npt.NDArray[Any] | None" = None
) -> Comparison:
    """Compare the answers of both models."""
    expected, values = (answers.first.astype(np.float64) for answers in (before, after))
    scale = np.sqrt(np.mean(expected**2))
    error = np.sqrt(np.mean((values - expected) ** 2)) / scale if scale else 0.0
    accuracy = agreement = None
    if expected.ndim == 2 and expected.shape[1] > 1:
        chosen = [answers.argmax(1) for answers in (expected, values)]
        agreement = float(np.mean(chosen[0] == chosen[1]))
        if labels is not None:
            first, second = (float(np.mean(choice == labels[: len(choice)])) for choice in chosen)
            accuracy = (first, second)
    elif labels is not None:
        raise InvalidInputs(
            f"labels need a model whose first output has a number per class, it is "
            f"{list(expected.shape)}"
        )
    times = (before.milliseconds, after.milliseconds)
    return Comparison(len(expected), times, float(error), accuracy, agreement)


def _rows(model: Any, arrays: Mapping[str, "npt.NDArray[Any]"]) -> Iterator[list[Any]]:
    """Iterate over the inputs of the runs of one batch each, in the order of the model.

    Raises InvalidInputs for arrays that are no inputs, or too few instances for a batch.
    """
    names = [port.get_any_name() if port.get_names() else "" for port in model.inputs]
    if len(arrays) == len(names) == 1:
        names = list(arrays)
    if set(names) != set(arrays):
        raise InvalidInputs(f"the data has {sorted(arrays)}, the model's inputs are {names}")
    shapes = [port.get_partial_shape() for port in model.inputs]
    size = next((int(s[0].get_length()) for s in shapes if len(s) and s[0].is_static), 1)
    count = len(next(iter(arrays.values())))
    if count < size:
        raise InvalidInputs(f"the model takes batches of {size}, the data has {count} instances")
    kinds = [port.get_element_type().to_dtype() for port in model.inputs]
    for begin in range(0, count - size + 1, size):
        yield [
            np.ascontiguousarray(arrays[name][begin : begin + size], kind)
            for name, kind in zip(names, kinds, strict=True)
        ]


def _run(model: Any, rows: list[list[Any]]) -> Answers:
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    outputs = []
    try:
        request.infer(rows[0])  # the first run prepares kernels
        began = time.perf_counter()
        for inputs in rows:
            outputs.append(next(iter(request.infer(inputs).values())).copy())
        seconds = time.perf_counter() - began
    except RuntimeError as error:
        raise InvalidInputs(f"the model does not take the data: {error}") from error
    first = np.concatenate(outputs) if outputs[0].ndim else np.array(outputs)
    return Answers(first, 1e3 * seconds / len(first))
