"""Values that are changed in place: whoever reads them later sees it, as with MindSpore."""

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore", reason="MindSpore exports and runs these networks")
torch = pytest.importorskip("torch", reason="PyTorch has these operators on a CPU")
from mindspore.ops.auto_generate import gen_ops_prim  # noqa: E402

from mindspore_serving.errors import StartError  # noqa: E402
from mindspore_serving.mindir.operators import WRITERS  # noqa: E402
from tests.mindir import writers  # noqa: E402
from tests.mindir.changing import BY_HAND, CHANGING, REFUSED, Residual, X  # noqa: E402
from tests.mindir.conftest import arrays_of, compare, export, opened  # noqa: E402
from tests.mindir.writers import UNKNOWN, WRITES, Writer  # noqa: E402

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter:UserWarning"),
]


def float_arrays(values):
    return [
        np.asarray(one, np.float32) for one in (values if isinstance(values, tuple) else [values])
    ]


@pytest.mark.parametrize("name", CHANGING)
def test_a_network_that_changes_values_in_place_answers_as_with_mindspore(name, tmp_path):
    """Three times, as weights keep what is written; the second takes the other side."""
    path = tmp_path / "model.mindir"
    export(CHANGING[name](), path, [X])
    cell = mindspore.nn.GraphCell(mindspore.load(str(path)))
    backend = opened(path)
    for x in (X, -X, X * 3):
        theirs = arrays_of(cell(mindspore.Tensor(x)))
        compare([np.array(one) for one in backend.run([x])], theirs)
    backend.close()


@pytest.mark.parametrize("shapes", [None, [(None, 2, 4, 4)]], ids=["fixed", "open"])
def test_a_residual_network_answers_as_with_mindspore(check, shapes):
    x = np.random.default_rng(0).standard_normal((3, 2, 4, 4)).astype(np.float32)
    check(Residual(), [x], shapes)


@pytest.mark.parametrize("name", BY_HAND)
def test_a_change_in_place_without_mindspore_on_cpu_reaches_all_readers(name, tmp_path):
    cell, expected = BY_HAND[name]
    export(cell(), tmp_path / "model.mindir", [X])
    backend = opened(tmp_path / "model.mindir")
    for x in (X, -X):
        compare([np.array(one) for one in backend.run([x])], float_arrays(expected(x)))
    backend.close()


@pytest.mark.parametrize("name", REFUSED)
def test_a_change_in_place_with_unknown_readers_is_refused_with_the_reason(name, tmp_path):
    cell, reason = REFUSED[name]
    export(cell(), tmp_path / "model.mindir", [X])
    with pytest.raises(StartError, match=reason):
        opened(tmp_path / "model.mindir")


@pytest.mark.parametrize("name", WRITES)
def test_a_writing_operator_changes_its_input_as_pytorch_does(name, tmp_path):
    arguments, change = WRITES[name]
    x = writers.X
    export(Writer(getattr(gen_ops_prim, name)(), arguments), tmp_path / "model.mindir", [x])
    backend = opened(tmp_path / "model.mindir")
    compare([np.array(one) for one in backend.run([x])], [change(torch.tensor(x)).numpy()])
    backend.close()


@pytest.mark.parametrize("rounding", ["trunc", "floor"])
@pytest.mark.parametrize(
    ("name", "divisor"),
    [("InplaceDivMod", writers.Y), ("InplaceDivMods", 0.7)],
    ids=["InplaceDivMod", "InplaceDivMods"],
)
def test_a_rounded_division_in_place_rounds_as_in_pytorch(name, divisor, rounding, tmp_path):
    x, file = writers.X, tmp_path / "model.mindir"
    export(Writer(getattr(gen_ops_prim, name)(), (divisor, rounding)), file, [x])
    backend = opened(file)
    by = torch.from_numpy(divisor) if isinstance(divisor, np.ndarray) else divisor
    expected = torch.tensor(x).div_(by, rounding_mode=rounding).numpy()
    compare([np.array(one) for one in backend.run([x])], [expected])
    backend.close()


def test_writing_operators_of_mindspore_are_converted_or_refused():
    names = {name for name in vars(gen_ops_prim) if name.startswith("Inplace")}
    assert names == set(WRITES) | UNKNOWN
    assert set(WRITES) | {"Assign", "AssignAdd", "AssignSub"} == WRITERS
