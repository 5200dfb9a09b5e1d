"""Inputs of a scikit-learn model: rows of numbers, one text, or columns with texts.

They are derived from what its first steps learnt, as no estimator declares them.  Runs no model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving.backends.base import Array
from mindspore_serving.backends.tabular import features
from mindspore_serving.core.dtype import TEXT
from mindspore_serving.core.value import TensorSpec

Examples: TypeAlias = dict[int, str | float]  # a learnt value of each column, by index

_WRAPPED = ("best_estimator_", "estimator_", "estimators_", "regressor_", "calibrated_classifiers_")
_UNCARRIED = {"DictVectorizer": "dictionaries", "FeatureHasher": "dictionaries"}
_UNCARRIED |= {"MultiLabelBinarizer": "lists of labels"}


@dataclass(frozen=True, slots=True)
class SklearnInputs:
    """Inputs of a model, and an instance of values that it has learnt, () if any will do.

    `names` are those of the columns of a DataFrame, if the model selects them by name.
    """

    specs: tuple[TensorSpec, ...]
    example: tuple[Array, ...] = ()
    are_columns: bool = False
    names: tuple[str, ...] = ()

    def to_rows(self, *inputs: Array) -> Any:
        """Return the rows in the form that the model was trained on."""
        if self.names:
            import pandas

            columns = inputs if self.are_columns else inputs[0].T
            return pandas.DataFrame(dict(zip(self.names, columns, strict=True)))
        if not self.are_columns:
            return inputs[0]
        rows = np.empty((len(inputs[0]), len(inputs)), object)
        for number, column in enumerate(inputs):
            rows[:, number] = column
        return rows


def inputs_of(model: Any) -> SklearnInputs:
    """Return the inputs of `model`.

    If a column holds texts, each column is a separate input, as requests carry one text in a value.

    Raises ValueError with the reason if no request can carry the model's input.
    """
    count = getattr(model, "n_features_in_", None)
    if count is None:
        return SklearnInputs((_single(model),))
    examples = _examples(model, count)
    values = [examples.get(number, 0.0) for number in range(count)]
    known = tuple(map(str, getattr(model, "feature_names_in_", ())))
    selected = known if _selects_names(model) else ()
    if not any(isinstance(value, str) for value in values):
        x = features(count, "float64", known)
        return SklearnInputs((x,), (np.array([values], np.float64),), names=selected)
    names = list(known) or (["x"] if count == 1 else [f"x{number}" for number in range(count)])
    kinds = [TEXT if isinstance(value, str) else np.dtype("float64") for value in values]
    specs = (
        TensorSpec(name, kind, (-1,), example=examples.get(number))
        for number, (name, kind) in enumerate(zip(names, kinds, strict=True))
    )
    columns = (np.array([value], object) for value in values)
    return SklearnInputs(tuple(specs), tuple(columns), are_columns=True, names=selected)


def _single(model: Any) -> TensorSpec:
    """Return the input of a model that does not count features."""
    steps = list(_first_steps(model))
    for kind in {type(step).__name__ for step in steps} & _UNCARRIED.keys():
        raise ValueError(
            f"it begins with a {kind}, which takes {_UNCARRIED[kind]}, and requests carry numbers "
            "and texts: train it on columns, as with OneHotEncoder, or serve it as a Python model"
        )
    if any(map(_takes_single_text, steps)):
        return TensorSpec("x", TEXT, (-1,))
    return TensorSpec("x", None, None)


def _takes_single_text(step: Any) -> bool:
    """Return whether a step is a vectoriser of texts, or an encoder of labels that are texts."""
    is_of_labels = type(step).__name__ in ("LabelEncoder", "LabelBinarizer")
    is_of_texts = is_of_labels and isinstance(_first_known(step.classes_), str)
    return is_of_texts or hasattr(step, "build_analyzer")


def _first_steps(model: Any) -> Iterator[Any]:
    """Iterate over the steps that see the inputs unchanged; `model` itself if it has no steps."""
    inner = [*_inner_models(model)]
    if not inner:
        yield model
    for step in inner:
        yield from _first_steps(step)


def _inner_models(model: Any) -> Iterator[Any]:
    """Iterate over the parts of `model` that see all of its inputs."""
    if hasattr(model, "steps"):
        yield from [step for _, step in model.steps if not _keeps_columns(step)][:1]
    elif hasattr(model, "transformer_list"):
        yield from (part for _, part in model.transformer_list if not isinstance(part, str))
    for name in _WRAPPED:
        wrapped = getattr(model, name, ())
        for part in wrapped if isinstance(wrapped, list | tuple) else [wrapped]:
            calibrated = getattr(part, "estimator", None) if name.startswith("calibrated") else part
            if hasattr(calibrated, "fit"):
                yield calibrated


def _keeps_columns(step: Any) -> bool:
    is_identity = type(step).__name__ == "FunctionTransformer" and step.func is None
    return isinstance(step, str) or step is None or is_identity


def _examples(model: Any, count: int) -> Examples:
    """Return a value of each column of which `model` has learnt values."""
    examples: Examples = {}
    learnt = getattr(model, "categories_", None)  # of encoders
    if learnt is None:
        learnt = [[value] for value in np.ravel(getattr(model, "statistics_", []))]  # of imputers
    known = ((number, _first_known(values)) for number, values in enumerate(learnt))
    examples |= {number: value for number, value in known if value is not None}
    for part, chosen in _parts(model):
        columns = np.arange(count)[chosen]
        if np.ndim(columns) == 0:  # one column, given to a vectoriser as a list of texts
            texts = any(map(_takes_single_text, _first_steps(part)))
            examples |= {int(columns): "text"} if texts else {}
            continue
        examples |= {
            int(columns[index]): value for index, value in _examples(part, len(columns)).items()
        }
    for inner in _inner_models(model):
        examples |= _examples(inner, count)
    return examples


def _parts(model: Any) -> Iterator[tuple[Any, Any]]:
    """Iterate over the transformers of columns, with the indices of their columns."""
    names = [*getattr(model, "feature_names_in_", ())]
    for _, part, chosen in getattr(model, "transformers_", ()):
        if isinstance(part, str):
            continue
        if not _is_named(chosen):
            yield part, chosen
        elif isinstance(chosen, str):
            yield part, names.index(chosen)
        else:
            yield part, [names.index(name) for name in chosen]


def _selects_names(model: Any) -> bool:
    """Return whether a step that sees the inputs selects columns of a DataFrame by name."""
    parts = getattr(model, "transformers_", ())
    is_selecting = any(_is_named(chosen) for _, part, chosen in parts if part != "drop")
    return is_selecting or any(map(_selects_names, _inner_models(model)))


def _is_named(chosen: Any) -> bool:
    names = [chosen] if isinstance(chosen, str) else chosen
    return not isinstance(names, int | slice) and any(isinstance(name, str) for name in names)


def _first_known(values: Any) -> str | float | None:
    """Return a text of `values` if there is one, else a number."""
    texts = (str(value) for value in values if isinstance(value, str))
    numbers = (float(value) for value in values if isinstance(value, Real) and value == value)
    return next(texts, None) or next(numbers, None)
