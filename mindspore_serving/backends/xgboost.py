"""XGBoost's own files: .json and .ubj of `save_model`.  Knows no batches."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from mindspore_serving.backends.base import Array, ModelSource
from mindspore_serving.backends.source import load_error
from mindspore_serving.backends.tabular import Predictor, TabularBackend, boosted, features
from mindspore_serving.backends.ubjson import check_complete

_CLASSES = ("binary:logistic", "multi:softprob", "multi:softmax")


class XgboostBackend(TabularBackend):
    """A booster; NaN is a missing value.

    For a classifier (objective binary:logistic, multi:softprob, multi:softmax) `prediction` is the
    index of the class; for other objectives, and for several labels, it is the booster's
    prediction. After early stopping, trees up to the best iteration count, as in XGBoost's
    scikit-learn interface.
    """

    @classmethod
    def open_file(cls, source: ModelSource, path: str, num_threads: int) -> Predictor:
        import xgboost

        if not path.lower().endswith(".json"):  # XGBoost reads others as UBJSON
            check_complete(source, path)
        booster = xgboost.Booster(model_file=path)
        booster.set_param({"nthread": num_threads})
        config = json.loads(booster.save_config())["learner"]
        objective = config["objective"]["name"]
        if objective == "multi:softmax":
            booster.set_param({"objective": "multi:softprob"})  # the same with probabilities
        if booster.num_features() == 0:
            raise load_error(source, path, "it has no features: it was not trained")
        is_linear = config["gradient_booster"]["name"] == "gblinear"
        predict = partial(_predict_linear, booster) if is_linear else _tree_predictor(booster)
        has_labels = int(config["learner_model_param"]["num_target"]) > 1  # each with a probability
        is_classifier = objective in _CLASSES and not has_labels
        x = features(booster.num_features(), "float32", booster.feature_names or ())
        return boosted(x, predict, is_classifier=is_classifier)


def _tree_predictor(booster: Any) -> Callable[[Array], Array]:
    best = booster.attr("best_iteration")
    trees = (0, 0 if best is None else int(best) + 1)  # 0: all
    return partial(booster.inplace_predict, iteration_range=trees)


def _predict_linear(booster: Any, rows: Array) -> Array:
    import xgboost

    matrix = xgboost.DMatrix(rows, feature_names=booster.feature_names, nthread=1)
    result: Array = booster.predict(matrix)
    return result
