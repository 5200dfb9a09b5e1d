"""Check of a model's first axes by one run of two instances."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mindspore_serving.backends.probing import check_batch
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.dtype import TEXT
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import StageFailed, StartError

F4 = np.dtype("f4")
SPEC = DeclaredModel("net", "python")


class Model:
    """A function of arrays as a loaded model."""

    def __init__(self, run: Callable[..., Any], *shapes: tuple[int, ...] | None, dtype=F4) -> None:
        self._run = run
        inputs = (TensorSpec(f"x{i}", dtype, shape) for i, shape in enumerate(shapes))
        self.signature = (Signature(tuple(inputs), (TensorSpec("y", None, None),)),)
        self.num_rows: list[int] = []

    def run(self, inputs, subgraph=0):
        self.num_rows.append(len(inputs[0]))
        return [self._run(*inputs)]

    def close(self) -> None:
        """Nothing to give back."""


def fail(x):
    raise StageFailed("no zeros")


@pytest.mark.parametrize(
    ("run", "shapes"),
    [
        (np.transpose, [(-1, 3)]),
        (np.transpose, [(-1, -1)]),
        (np.sum, [(-1, 3)]),
        (lambda x: x.sum(axis=0), [(-1, 5)]),
        (lambda x: x[np.newaxis], [(-1, 3)]),
        (lambda x: x[:3], [(4, 3)]),
        (lambda x, y: np.concatenate([x, y]), [(-1, 3), (-1, 3)]),
    ],
)
def test_output_without_batch_axis_is_refused_with_advice(run, shapes):
    with pytest.raises(StartError, match=r"model: net.*with_batch_dim=False.*serve --no-batch-dim"):
        check_batch(Model(run, *shapes), SPEC)


@pytest.mark.parametrize(
    ("run", "shapes"),
    [
        (lambda x: x.sum(axis=1), [(-1, 3)]),
        (lambda x: x * 2, [(1, 3)]),
        (lambda x: x * 2, [(4, 3)]),
        (lambda x, y: x + y, [(-1, 3), (-1, 3)]),
        (np.transpose, [None]),  # what it takes is not known
        (fail, [(-1, 3)]),
    ],
)
def test_other_models_are_left_alone(run, shapes):
    check_batch(Model(run, *shapes), SPEC)


def test_a_model_of_texts_gets_texts():
    model = Model(lambda x: np.array([len(one) for one in x]), (-1,), dtype=TEXT)
    check_batch(model, SPEC)
    assert model.num_rows == [2]


def test_without_a_batch_dimension_any_output_is_right():
    check_batch(Model(np.transpose, (-1, 3)), DeclaredModel("net", "python", with_batch_dim=False))


def test_model_of_batch_size_1_is_probed_with_a_single_instance():
    model = Model(lambda x: x, (-1, 3))
    (spec,) = model.signature[0].inputs
    (limited,) = [TensorSpec(spec.name, spec.dtype, spec.shape, max_rows=1)]
    model.signature = (Signature((limited,), model.signature[0].outputs),)
    check_batch(model, SPEC)
    assert model.num_rows == [1]
