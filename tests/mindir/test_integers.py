"""Arithmetic of integers wraps and rounds as MindSpore's, in every integer type."""

import numpy as np
import openvino as ov
import pytest
from openvino import opset16 as op

mindspore = pytest.importorskip("mindspore", reason="MindSpore computes what is compared")
pytest.importorskip("torch", reason="the tests of operators use it")

from mindspore_serving.errors import StageFailed  # noqa: E402
from mindspore_serving.mindir.operators import OPERATORS  # noqa: E402
from mindspore_serving.mindir.operators.types import element_type  # noqa: E402
from mindspore_serving.mindir.tensors import apply, tensor  # noqa: E402
from mindspore_serving.mindir.values import leaves, mapped  # noqa: E402
from tests.mindir.conftest import export, opened, run_by_mindspore  # noqa: E402
from tests.mindir.integers import KINDS, ROWS, operands  # noqa: E402
from tests.mindir.test_operators import primitive  # noqa: E402

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def arrays_for(row, kind):
    values = operands(kind)
    return tuple(
        tuple(values[one] for one in name) if isinstance(name, tuple) else values[name]
        for name in row.operands
    )


def computed(graphs, arrays):
    """What OpenVINO gives for each of `graphs`, functions of nodes for the arrays of one row."""
    parameters, results, given = [], [], []

    def enter(array):
        parameters.append(op.parameter(array.shape, ov.Type(array.dtype)))
        given.append(array)
        return parameters[-1].output(0)

    for graph, row in zip(graphs, arrays, strict=True):
        (result,) = leaves(graph(*mapped(enter, row)))
        results.append(op.result(tensor(result)))
    model = ov.Model(results, parameters, "integers")
    return list(ov.Core().compile_model(model, "CPU")(given).values())


def by_mindspore(name, row, arrays):
    """None where MindSpore has no kernel for CPUs of this type."""
    if name == "AddV2":  # has no class
        return None
    made = primitive(name)
    try:
        made = made(**row.init) if isinstance(made, type) else made
        return made(*mapped(mindspore.Tensor, arrays), *row.more).asnumpy()
    except (TypeError, ValueError, RuntimeError):
        return None


@pytest.mark.parametrize("kind", KINDS)
def test_integers_are_computed_as_by_mindspore(kind):
    """By numpy where MindSpore has no kernel; where it has one, numpy is shown to be right."""
    arrays = [arrays_for(row, kind) for row in ROWS.values()]
    graphs = [
        lambda *inputs, name=name, row=row: apply(OPERATORS[name], [*inputs, *row.more], row.init)
        for name, row in ROWS.items()
    ]
    different = {}
    for (name, row), given, ours in zip(
        ROWS.items(), arrays, computed(graphs, arrays), strict=True
    ):
        expected = np.asarray(row.reference(*given, *row.more))
        theirs = by_mindspore(name, row, given)
        if theirs is not None:
            assert (name, theirs.tolist()) == (name, expected.tolist())
        if ours.dtype != expected.dtype or not np.array_equal(ours, expected):
            different[name] = (ours.tolist(), expected.tolist())
    assert different == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_cast_from_an_integer_type_to_another_wraps(kind):
    numbers = {one: getattr(mindspore, one) for one in KINDS}
    x = operands(kind)["x"]
    graphs = [
        lambda value, number=number: apply(OPERATORS["Cast"], [value, number], {})
        for number in (NUMBERS[one] for one in KINDS)
    ]
    for name, ours in zip(numbers, computed(graphs, [(x,)] * len(KINDS)), strict=True):
        assert ours.dtype == name
        np.testing.assert_array_equal(ours, x.astype(name))


NUMBERS = {"int8": 32, "int16": 33, "int32": 34, "int64": 35}
NUMBERS |= {"uint8": 37, "uint16": 38, "uint32": 39, "uint64": 40}


def test_numbers_of_integer_types_are_those_of_openvino():
    for name, number in NUMBERS.items():
        assert element_type(number) == ov.Type(np.dtype(name))


NARROW = (mindspore.int8, mindspore.uint8, mindspore.int16, mindspore.uint16)


class Chain(mindspore.nn.Cell):
    def construct(self, x, y):
        z = x + y
        wide = x.astype(mindspore.int32) * 70001
        narrow = [wide.astype(kind).astype(mindspore.float32) * 0.5 for kind in NARROW]
        return z, z * x - y, (z * 3).astype(mindspore.float32) * 0.5, *narrow


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32"])
def test_a_chain_of_integers_of_a_file_wraps_at_each_step(kind, tmp_path):
    values = operands(kind)
    inputs = [values["x"], values["y"]]
    export(Chain(), tmp_path / "chain.mindir", inputs)
    theirs = [one.asnumpy() for one in run_by_mindspore(tmp_path / "chain.mindir", inputs)]
    ours = opened(tmp_path / "chain.mindir").run(inputs)
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.array(our), their)


class Same(mindspore.nn.Cell):
    def construct(self, x):
        return x + 1


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_an_integer_beyond_32_bits_is_refused(number, tmp_path):
    export(Same(), tmp_path / "same.mindir", [np.zeros(2, np.int64)])
    backend = opened(tmp_path / "same.mindir")
    with pytest.raises(StageFailed, match=rf"input 'x' has {number}.*32 bits"):
        backend.run([np.array([1, number])])
    np.testing.assert_array_equal(backend.run([np.array([1, 2**31 - 2])])[0], [2, 2**31 - 1])
