"""Every operator of the table, with random arrays and attributes, against MindSpore.

Where MindSpore has no kernel for a CPU, against PyTorch or numpy.
"""

import numpy as np
import openvino as ov
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openvino import opset16 as op

mindspore = pytest.importorskip("mindspore", reason="MindSpore computes what is compared")
pytest.importorskip("torch", reason="PyTorch computes what MindSpore does not on a CPU")
from mindspore import nn  # noqa: E402

from mindspore_serving.mindir.operators import OPERATORS, WRITERS, inplace  # noqa: E402
from mindspore_serving.mindir.tensors import apply, tensor  # noqa: E402
from mindspore_serving.mindir.values import Constant, Lost, leaves, mapped  # noqa: E402
from tests.mindir import (  # noqa: E402
    cases_choices,
    cases_elements,
    cases_layers,
    cases_mathematics,
    cases_moves,
)
from tests.mindir.conftest import arrays_of, compare, export, opened  # noqa: E402
from tests.mindir.drawing import Draw  # noqa: E402

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
FILES = (cases_choices, cases_elements, cases_layers, cases_mathematics, cases_moves)
CASES = {name: case for file in FILES for name, case in file.CASES.items()}
PLACES = (
    "mindspore.ops.auto_generate",
    "mindspore.ops.operations",
    "mindspore.ops.operations._inner_ops",
    "mindspore.ops.operations.math_ops",
    "mindspore.ops.operations.nn_ops",
    "mindspore.ops.operations.array_ops",
    "mindspore.ops.operations.manually_defined",
    "mindspore.ops.auto_generate.gen_ops_prim",
)


def primitive(name):
    import importlib

    for place in PLACES:
        found = getattr(importlib.import_module(place), name, None)
        if found is not None:
            return found
    raise AssertionError(f"MindSpore has no primitive {name}")


class Cell(nn.Cell):
    """A call of a primitive; `groups` says how many inputs make a tuple, 0 for a tensor."""

    def __init__(self, made, groups, more):
        super().__init__()
        self.made, self.groups, self.more = made, groups, more


class Of0(Cell):
    def construct(self):
        return self.made(*self.more)


class Of1(Cell):
    def construct(self, a):
        return self.made((a,), *self.more) if self.groups[0] else self.made(a, *self.more)


class Of2(Cell):
    def construct(self, a, b):
        return self.made((a, b), *self.more) if self.groups[0] else self.made(a, b, *self.more)


class Of3(Cell):
    def construct(self, a, b, c):
        return (
            self.made((a, b, c), *self.more) if self.groups[0] else self.made(a, b, c, *self.more)
        )


class Of4(Cell):
    def construct(self, a, b, c, d):
        return self.made(a, b, c, d, *self.more)


class Of5(Cell):
    def construct(self, a, b, c, d, e):
        return self.made(a, b, c, d, e, *self.more)


CELLS = (Of0, Of1, Of2, Of3, Of4, Of5)


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_operator_equals_mindspore(name, tmp_path):
    cases = []

    @settings(
        max_examples=3,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def draw(data):
        cases.append(CASES[name](Draw(data)))

    draw()
    compare_with_reference(name, [case for case in cases if case.reference is not None])
    for number, case in enumerate(cases):
        if case.reference is None:
            compare_with_mindspore(name, case, tmp_path / f"{number}.mindir")


def test_every_operator_has_a_case():
    """Some have several names.  What writes is in test_inplace, what slices are assigned by in
    test_open_sizes."""
    seen = {OPERATORS[name] for name in (*CASES, *WRITERS, *inplace.ASSIGNMENTS)}
    assert [name for name, operator in OPERATORS.items() if operator not in seen] == []


def compare_with_mindspore(name, case, path):
    made = primitive(name)
    made = made(**case.init) if isinstance(made, type) else made
    arrays = [np.asarray(one) for one in leaves(case.tensors)]
    groups = tuple(len(one) if isinstance(one, tuple) else 0 for one in case.tensors)
    more = tuple(mindspore.Tensor(m) if isinstance(m, np.ndarray) else m for m in case.more)
    cell = CELLS[len(arrays)](made, groups or (0,), more)
    theirs = cell(*[mindspore.Tensor(array) for array in arrays])
    export(cell, path, arrays)
    backend = opened(path)
    ours = [np.array(one) for one in backend.run(arrays)]
    backend.close()
    compare(ours, arrays_of(theirs), case.tolerance)


def compare_with_reference(name, cases):
    """Without a file: the operator's nodes alone, of all cases in one model, as compiling one takes
    ten times as long as running it."""
    if not cases:
        return
    arrays, parameters, made = [], [], []
    for case in cases:
        more_arrays, more_parameters, results = nodes_of(name, case)
        arrays += more_arrays
        parameters += more_parameters
        made.append(results)
    model = ov.Model([op.result(one) for results in made for one in results], parameters, name)
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    computed = iter([np.array(one) for one in compiled(arrays).to_tuple()])
    for case, results in zip(cases, made, strict=True):
        ours = [next(computed) for _ in results]
        expected = arrays_of(tuple_of(case.reference(*case.tensors, *case.more)))
        compare(ours, expected, case.tolerance)


def nodes_of(name, case):
    """The arrays that a case is computed from, the parameters for them, and its outputs."""
    parameters, arrays = [], []

    def enter(value):
        if isinstance(value, tuple):
            return tuple(enter(part) for part in value)
        array = np.asarray(value)
        parameters.append(op.parameter(array.shape, ov.Type(array.dtype)))
        arrays.append(array)
        return parameters[-1].output(0)

    inputs = [enter(value) for value in case.tensors]
    more = mapped(
        lambda one: Constant(np.asarray(one)) if isinstance(one, np.generic | np.ndarray) else one,
        case.more,
    )
    result = apply(OPERATORS[name], [*inputs, *more], case.init)
    return arrays, parameters, [tensor(one) for one in leaves(result) if not isinstance(one, Lost)]


def tuple_of(result):
    """Nested results of torch and numpy as arrays."""
    if isinstance(result, tuple | list):
        return tuple(tuple_of(part) for part in result)
    return result.numpy() if hasattr(result, "numpy") else np.asarray(result)
