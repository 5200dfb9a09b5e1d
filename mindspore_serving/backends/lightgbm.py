"""LightGBM's own files, the text of `save_model`.  Knows no batches."""

import re
from functools import partial

from mindspore_serving.backends.base import ModelSource
from mindspore_serving.backends.source import load_error
from mindspore_serving.backends.tabular import Predictor, TabularBackend, boosted, features

_CLASSES = ("binary", "multiclass", "multiclassova")
_OBJECTIVE = re.compile(r"^objective=(\S+)", re.MULTILINE)
_TREES = re.compile(r"^tree_sizes=([\d ]*)\s*?\n", re.MULTILINE)


class LightgbmBackend(TabularBackend):
    """A booster; NaN is a missing value.

    For a classifier (objective binary, multiclass, multiclassova) `prediction` is the index of the
    class; for others it is the booster's prediction.
    """

    @classmethod
    def open_file(cls, source: ModelSource, path: str, num_threads: int) -> Predictor:
        import lightgbm

        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
        _check_complete(source, path, text)
        booster = lightgbm.Booster(model_str=text)
        predict = partial(booster.predict, num_threads=num_threads)
        objective = _OBJECTIVE.search(text)
        is_classifier = objective is not None and objective.group(1) in _CLASSES
        names = booster.feature_name()
        is_named = any(name != f"Column_{index}" for index, name in enumerate(names))
        x = features(len(names), "float64", names if is_named else ())
        return boosted(x, predict, is_classifier=is_classifier)


def _check_complete(source: ModelSource, path: str, text: str) -> None:
    """Raise StartError for a truncated file, by its trees; LightGBM would end the process."""
    sizes = _TREES.search(text)
    if not text.startswith("tree") or sizes is None:
        raise load_error(source, path, "it is no text file of LightGBM")
    trees = text.find("Tree=0", sizes.end())
    end = trees + sum(map(int, sizes.group(1).split()))
    if trees < 0 or text[end : end + len("end of trees")] != "end of trees":
        raise load_error(source, path, "it is damaged or truncated: its trees have other sizes")
