"""CatBoost's own files: .cbm and .json of `save_model`.  Knows no batches."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mindspore_serving.backends.base import Array, ModelSource
from mindspore_serving.backends.source import load_error
from mindspore_serving.backends.tabular import (
    PREDICTION,
    PROBABILITIES,
    Predictor,
    TabularBackend,
    features,
)
from mindspore_serving.core.dtype import TEXT
from mindspore_serving.core.value import TensorSpec

_LABELS = ("MultiLogloss", "MultiCrossEntropy")  # several labels, each with a probability
_PREDICTIONS = {"Poisson": "Exponent", "Tweedie": "Exponent", "RMSEWithUncertainty": ""}
_EMBEDDINGS = (
    "it has embeddings as features, and requests carry numbers and texts in columns: train it on "
    "their numbers as columns"
)


class CatboostBackend(TabularBackend):
    """A model of trees; NaN is a missing value.

    Without categories and texts its input is a row `x`, else each column is an input.  For a
    classifier `prediction` is the class of training; for others it is as CatBoost's scikit-learn
    interface returns it.
    """

    @classmethod
    def open_file(cls, source: ModelSource, path: str, num_threads: int) -> Predictor:
        import catboost

        kind = "json" if path.lower().endswith(".json") else "cbm"
        model = catboost.CatBoost().load_model(path, format=kind)
        if model.get_embedding_feature_indices():
            raise load_error(source, path, _EMBEDDINGS)
        names = list(map(str, model.feature_names_))
        columns = {*model.get_cat_feature_indices(), *model.get_text_feature_indices()}
        is_named = any(name != str(index) for index, name in enumerate(names))
        if not columns:
            x = features(len(names), "float32", names if is_named else ())
            return Predictor((x,), *_predictions(model, num_threads))
        names = names if is_named else [f"x{name}" for name in names]
        kinds = [TEXT if i in columns else np.dtype("float32") for i in range(len(names))]
        specs = tuple(TensorSpec(*row, (-1,)) for row in zip(names, kinds, strict=True))
        outputs, predict = _predictions(model, num_threads)
        return Predictor(specs, outputs, lambda *inputs: predict(_to_pool(model, inputs)))


def _predictions(
    model: Any, num_threads: int
) -> tuple[tuple[str, ...], Callable[[Any], list[Array]]]:
    """Return the outputs of a model, and the function that computes them for rows or a pool."""
    loss = str((model.get_all_params() or {}).get("loss_function", "")).partition(":")[0]
    names: tuple[str, ...] = (PREDICTION,)
    types: tuple[str, ...] = (_PREDICTIONS.get(loss, "RawFormulaVal") or loss,)
    if loss in _LABELS:
        types = ("Probability",)
    elif len(model.classes_):
        names, types = (PREDICTION, PROBABILITIES), ("Class", "Probability")
    calls = [partial(model.predict, prediction_type=t, thread_count=num_threads) for t in types]
    return names, lambda rows: [_flat(call(rows)) for call in calls]


def _flat(result: Any) -> Array:
    """Return a result with one value of a row in one dimension, as classes of several have two."""
    array = np.asarray(result)
    return array.reshape(-1) if array.ndim == 2 and array.shape[1] == 1 else array


def _to_pool(model: Any, inputs: tuple[Array, ...]) -> Any:
    import catboost

    rows = np.empty((len(inputs[0]), len(inputs)), object)
    for number, column in enumerate(inputs):
        rows[:, number] = column
    return catboost.Pool(
        rows,
        cat_features=model.get_cat_feature_indices(),
        text_features=model.get_text_feature_indices(),
        feature_names=model.feature_names_,
    )
