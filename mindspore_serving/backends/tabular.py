"""Base of backends for rows: an input `x` or one per column, `prediction` and `probabilities`.

`x` is a row of features or one text.  Knows no format.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mindspore_serving import log
from mindspore_serving.backends.base import Array, ModelSource
from mindspore_serving.backends.source import SourceOptions, check_files, error_text, load_error
from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import StageFailed, StartError

PREDICTION, PROBABILITIES, TRANSFORMED = "prediction", "probabilities", "transformed"


@dataclass(frozen=True, slots=True)
class Predictor:
    """A loaded file.

    `predict` gets the rows of each of `inputs` and returns an array for each of `outputs`.
    `example` is an instance with values that the model has learnt, () if any values will do.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    predict: Callable[..., Sequence[Array]]
    example: tuple[Array, ...] = ()


class TabularBackend(ABC):
    """Backend with one predictor per file, on a CPU."""

    def __init__(self, predictors: list[Predictor], signature: tuple[Signature, ...]) -> None:
        self._predictors = predictors
        self.signature = signature  # one per file

    @classmethod
    @abstractmethod
    def open_file(cls, source: ModelSource, path: str, num_threads: int) -> Predictor:
        """Load `path`.  Raises StartError, or any Exception for a wrong file."""

    @classmethod
    def load(cls, source: ModelSource) -> "TabularBackend":
        """Load every file and run it once.

        The instance is the predictor's example, a row of zeros or an empty text.  Of `Context`,
        `thread_num` is applied.  The default is 1: most batches are small, and other workers need
        the cores too.
        """
        check_files(source)
        options = SourceOptions(source)
        num_threads = options.take("thread_num") or 1
        options.report_ignored()
        predictors = [_open(cls, source, path, num_threads) for path in source.paths]
        signature = [
            _signature(source, path, predictor)
            for path, predictor in zip(source.paths, predictors, strict=True)
        ]
        return cls(predictors, tuple(signature))

    def run(self, inputs: Sequence[Array], subgraph: int = 0) -> list[Array]:
        try:
            return list(map(np.asarray, self._predictors[subgraph].predict(*inputs)))
        except Exception as error:  # many kinds, depending on the model
            raise StageFailed(error_text(error)) from error

    def close(self) -> None:
        self._predictors.clear()


def features(count: int, dtype: str, columns: Iterable[str] = ()) -> TensorSpec:
    """Return the input `x` of rows with `count` numbers, which have the names `columns` if any."""
    return TensorSpec("x", np.dtype(dtype), (-1, count), columns=tuple(map(str, columns)))


def boosted(x: TensorSpec, predict: Callable[[Array], Array], *, is_classifier: bool) -> Predictor:
    """Return the predictor of a booster of rows `x`.

    For a classifier, whose `predict` returns the probability of the one class or of all classes,
    the prediction is the index of the most likely class, int64, and the probabilities are of all
    classes.
    """
    if not is_classifier:
        return Predictor((x,), (PREDICTION,), lambda rows: [predict(rows)])
    names = (PREDICTION, PROBABILITIES)
    return Predictor((x,), names, lambda rows: _to_classes(predict(rows)))


def _to_classes(probabilities: Array) -> list[Array]:
    if probabilities.ndim == 1:
        probabilities = np.stack([1 - probabilities, probabilities], axis=1)
    return [probabilities.argmax(axis=1), probabilities]


def _open(
    backend: type[TabularBackend], source: ModelSource, path: str, num_threads: int
) -> Predictor:
    if source.device_type != "cpu":
        raise StartError(
            f"Load model '{source.spec.key}' failed: models of format {source.spec.format} run on "
            f"device type cpu, not on {source.device_type}"
        )
    try:
        return backend.open_file(source, path, num_threads)
    except StartError:
        raise
    except Exception as error:  # many kinds, depending on the fault in the file
        raise load_error(source, path, error) from error


def _signature(source: ModelSource, path: str, predictor: Predictor) -> Signature:
    """Return the signature, with types and shapes of the outputs if a run succeeds."""
    results: Sequence[Array | None] = [None] * len(predictor.outputs)
    rows = predictor.example or [_zeros(spec) for spec in predictor.inputs]
    if all(row is not None for row in rows):
        try:
            results = [np.asarray(result) for result in predictor.predict(*rows)]
        except StartError as error:
            raise load_error(source, path, error) from error
        except Exception as error:  # zeros may not be among the model's categories
            log.warning("Model file '%s' is not warmed up: %s", path, error_text(error))
    outputs = [_output(*row) for row in zip(predictor.outputs, results, strict=True)]
    for output in outputs:
        if output.dtype == dtypes.TEXT and output.shape != (-1,):
            raise load_error(
                source, path, f"its output '{output.name}' is several texts, replies carry one"
            )
    return Signature(predictor.inputs, tuple(outputs))


def _zeros(spec: TensorSpec) -> Array | None:
    if spec.shape is None:
        return None
    shape = [max(dim, 1) for dim in spec.shape]
    return np.full(shape, "", object) if spec.dtype == dtypes.TEXT else np.zeros(shape, spec.dtype)


def _output(name: str, result: Array | None) -> TensorSpec:
    if result is None:
        return TensorSpec(name, None, None)
    dtype = dtypes.TEXT if result.dtype.kind in "OU" else result.dtype
    return TensorSpec(name, dtype, (-1, *result.shape[1:]))
