"""scikit-learn models: skops files, and pickles and joblib files if the operator allows them."""

import importlib.util
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from mindspore_serving import log
from mindspore_serving.backends.base import Array, ModelSource
from mindspore_serving.backends.sklearn_inputs import inputs_of
from mindspore_serving.backends.source import error_text, load_error
from mindspore_serving.backends.tabular import (
    PREDICTION,
    PROBABILITIES,
    TRANSFORMED,
    Predictor,
    TabularBackend,
)
from mindspore_serving.errors import StartError

_BY_NAME = (
    "it selects columns of a pandas DataFrame by name behind its first steps, which get rows of "
    "numbers here: select them in the first step, or serve it as a Python model"
)
_NO_PANDAS = (
    "it selects columns of a pandas DataFrame by name, and pandas is not installed: pip install "
    "pandas, or train it on arrays with the indices of the columns"
)
_PICKLE = (
    "it is no skops file, and loading a pickle or joblib file runs any code in it: if you trust "
    "its author, declare the model with allow_pickle=True (serve: --allow-pickle); otherwise save "
    "it with skops.io.dump(model, 'model.skops')"
)
_TRUST = (
    "if you trust its author, declare the model with allow_pickle=True (serve: --allow-pickle); "
    "trees can be exported as ONNX instead, by skl2onnx"
)


class SklearnBackend(TabularBackend):
    """An estimator or pipeline with `predict` (and `predict_proba`), or else `transform`.

    `prediction` is the result of `predict`; `probabilities` are in the order of `classes_`.
    """

    @classmethod
    def open_file(cls, source: ModelSource, path: str, num_threads: int) -> Predictor:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = _load_file(source, path)
        for warning in caught:
            log.warning("Model file '%s': %s", path, error_text(warning.message))
        methods = [name for name in ("predict", "predict_proba") if hasattr(model, name)]
        if "predict" in methods:
            names = (PREDICTION, PROBABILITIES)[: len(methods)]
        elif hasattr(model, "transform"):
            methods, names = ["transform"], (TRANSFORMED,)
        else:
            kind = type(model).__name__
            raise load_error(source, path, f"it is a {kind}, without predict and transform")

        inputs = inputs_of(model)
        if inputs.names and importlib.util.find_spec("pandas") is None:
            raise load_error(source, path, _NO_PANDAS)
        return Predictor(
            inputs.specs,
            names,
            lambda *x: _call(model, methods, inputs.to_rows(*x)),
            inputs.example,
        )


def _load_file(source: ModelSource, path: str) -> Any:
    try:
        if path.lower().endswith(".skops"):
            return _load_skops(source, path)
        if not source.spec.allow_pickle:
            raise load_error(source, path, _PICKLE)
        import joblib

        return joblib.load(path)
    except ImportError as error:  # the model needs a library; skops itself is installed
        raise load_error(source, path, f"it needs a library: {error}") from error


def _load_skops(source: ModelSource, path: str) -> Any:
    import skops.io

    unknown = skops.io.get_untrusted_types(file=path)
    if unknown and not source.spec.allow_pickle:
        raise load_error(
            source, path, f"it has types that skops does not trust: {', '.join(unknown)}; {_TRUST}"
        )
    return skops.io.load(path, trusted=unknown)


def _call(model: Any, methods: Sequence[str], x: Array) -> list[Array]:
    with warnings.catch_warnings():
        # from a model that was fitted on a DataFrame
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        try:
            return [_dense(getattr(model, name)(x)) for name in methods]
        except ValueError as error:
            if "columns using strings" in str(error):
                raise StartError(_BY_NAME) from error
            raise


def _dense(result: Any) -> Array:
    """Convert a result to a dense array.

    A sparse matrix becomes its rows, a list of targets one array (batch, targets, classes), and an
    array of objects that are numbers an array of numbers.
    """
    if hasattr(result, "toarray"):
        result = result.toarray()
    array = np.stack(result, axis=1) if isinstance(result, list) else np.asarray(result)
    is_text = array.dtype != object or not array.size or isinstance(array.flat[0], str)
    return array if is_text else np.array(array.tolist())
