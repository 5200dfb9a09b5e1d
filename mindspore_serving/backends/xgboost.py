"""XGBoost's own files: .json and .ubj of `save_model`.  Knows nothing of batches."""

import json
import math
from typing import Any

from mindspore_serving.backends.base import Array, ModelSource
from mindspore_serving.backends.source import load_error
from mindspore_serving.backends.tabular import (
    PREDICTION,
    PROBABILITIES,
    Predictor,
    TabularBackend,
    features,
    to_classes,
)
from mindspore_serving.backends.ubjson import check_whole

_CLASSES = ("binary:logistic", "multi:softprob", "multi:softmax")


class XgboostBackend(TabularBackend):
    """A booster.  NaN is a missing value.

    Of a classifier (objective binary:logistic, multi:softprob, multi:softmax) `prediction` is the
    number of the class; of others it is what the booster predicts.  After early stopping the trees
    up to the best iteration count, as in XGBoost's own scikit-learn interface.
    """

    @classmethod
    def open_file(cls, source: ModelSource, path: str, num_threads: int | None) -> Predictor:
        import xgboost

        if path.lower().endswith(".ubj"):
            check_whole(source, path)
        booster = xgboost.Booster(model_file=path)
        if num_threads is not None:
            booster.set_param({"nthread": num_threads})
        config = json.loads(booster.save_config())["learner"]
        objective = config["objective"]["name"]
        if objective == "multi:softmax":
            booster.set_param({"objective": "multi:softprob"})  # the same, with probabilities
        if booster.num_features() == 0:
            raise load_error(source, path, "it has no features: it was not trained")
        is_tree = config["gradient_booster"]["name"] != "gblinear"
        best = booster.attr("best_iteration")
        trees = (0, int(best) + 1) if best is not None and is_tree else (0, 0)
        x = features(booster.num_features(), "float32")
        if objective in _CLASSES:
            names = (PREDICTION, PROBABILITIES)
            return Predictor(x, names, lambda rows: to_classes(_predict(booster, rows, trees)))
        return Predictor(x, (PREDICTION,), lambda rows: [_predict(booster, rows, trees)])


def _predict(booster: Any, rows: Array, trees: tuple[int, int]) -> Array:
    import xgboost

    matrix = xgboost.DMatrix(rows, missing=math.nan, nthread=1)
    result: Array = booster.predict(matrix, iteration_range=trees, validate_features=False)
    return result
