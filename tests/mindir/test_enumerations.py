"""Every value of an enumerated argument is computed as MindSpore does, or refused by its name."""

from itertools import takewhile

import numpy as np
import pytest
from openvino import opset16 as op

mindspore = pytest.importorskip("mindspore", reason="MindSpore has the enumerations")
pytest.importorskip("torch", reason="PyTorch computes what MindSpore does not on a CPU")

from mindspore_serving.errors import StartError  # noqa: E402
from mindspore_serving.mindir.operators import OPERATORS, enumerations  # noqa: E402
from mindspore_serving.mindir.tensors import UnsupportedTensor, apply  # noqa: E402
from mindspore_serving.mindir.values import leaves, mapped  # noqa: E402
from tests.mindir import enumerations as audit  # noqa: E402
from tests.mindir.conftest import arrays_of, compare, export, opened, run_by_mindspore  # noqa: E402
from tests.mindir.test_operators import CELLS, primitive  # noqa: E402

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning"),
]
COMPUTED = [
    pytest.param(row, name, id=f"{row.operator}-{row.argument}-{name}")
    for row in audit.ROWS
    for name in row.statuses
]
# Ours -> that of the headers, and which of its entries are no values.
ENUMERATIONS = {
    "APPROXIMATE": ("Approximate", ()),
    "COORDINATES": ("CoordinateTransformMode", ()),
    "FORMAT": ("Format", ("default_format", "num_of_format")),
    "GRID_PADDING": ("GridSamplerPaddingMode", ()),
    "INDEXING": ("Indexing", ()),
    "INTERPOLATION": ("InterpolationMode", ()),
    "PADDING_MODE": ("PaddingMode", ("mode_reserved",)),
    "PAD_MODE": ("PadMode", ()),
    "REDUCE": ("Reduce", ()),
    "LAYOUT": ("FASInputLayoutMode", ()),
    "REDUCTION": ("Reduction", ()),
    "ROUNDING": ("RoundingMode", ()),
}
# What MindSpore checks with one accepted text, or accepts on other devices only.
FIXED = {
    ("AvgPool3D", "data_format"),
    ("Conv2D", "data_format"),
    ("Conv2DBackpropInput", "data_format"),
    ("Conv2DBackpropInput", "pad_mode"),  # swept in test_convolutions
    ("Conv2DTranspose", "data_format"),
    ("Conv2DTranspose", "pad_mode"),
    ("Conv3D", "data_format"),
    ("Conv3DTranspose", "data_format"),
    ("Conv3DTranspose", "pad_mode"),
    ("DeformableOffsets", "data_format"),
    ("LRN", "norm_region"),
    ("MaxPool", "data_format"),
    ("MaxPool3D", "data_format"),
    ("MaxPool3DWithArgmax", "data_format"),
}


def with_value(row, name):
    """The arguments behind the tensors, and those of the primitive."""
    value = name.lower() if isinstance(row.enumeration, str) else name
    value = value.upper() if row.enumeration == "Format" else value
    more = tuple(value if one is audit.VALUE else one for one in row.more)
    if row.operator == "PadV3":
        more = more[: 2 if name == "constant" else 1]
        more = tuple(1.5 if one is None else one for one in more)
    init = {key: value if one is audit.VALUE else one for key, one in row.init.items()}
    if value == "pad":
        init["pad_list" if row.operator == "MaxPool3D" else "pad"] = 1
    return more, init


@pytest.mark.parametrize(("row", "name"), COMPUTED)
def test_each_value_of_an_enumeration_is_computed_by_its_name(row, name, tmp_path):
    more, init = with_value(row, name)
    made = primitive(row.operator)
    made = made(**init) if isinstance(made, type) and init else made
    made = made() if isinstance(made, type) else made
    tensors = row.others.get(name, row.tensors)
    arrays = [np.asarray(one) for one in leaves(tensors)]
    groups = tuple(len(one) if isinstance(one, tuple) else 0 for one in tensors)
    fixed = mapped(lambda one: mindspore.Tensor(one) if isinstance(one, np.ndarray) else one, more)
    cell = CELLS[len(arrays)](made, groups, fixed)
    export(cell, tmp_path / "one.mindir", arrays)
    backend = opened(tmp_path / "one.mindir")
    ours = [np.array(one) for one in backend.run(arrays)]
    backend.close()
    if row.status(name) == audit.SAME:
        theirs = arrays_of(run_by_mindspore(tmp_path / "one.mindir", arrays))
    else:
        numbers = [one for one in row.more if isinstance(one, np.ndarray | float)]
        theirs = arrays_of(row.reference(*tensors, *numbers, name))
    compare(ours[: row.count], theirs[: row.count])


@pytest.mark.parametrize("row", audit.ROWS, ids=lambda row: f"{row.operator}-{row.argument}")
def test_other_values_of_an_enumeration_are_refused_by_name(row):
    words = "padding mode" if row.enumeration == "PadMode" else row.argument
    for name, value in row.values.items():
        if row.status(name) == audit.REFUSED and isinstance(value, int):
            with pytest.raises(
                UnsupportedTensor, match=rf"{words} {value}( \({name}\))?, accepted"
            ):
                called_with(row, value)


def called_with(row, value):
    """The operator, with a number for the argument, as a file has it."""
    given = list(takewhile(lambda one: one is not audit.VALUE, row.more))
    inputs = mapped(
        lambda one: op.constant(one).output(0) if isinstance(one, np.ndarray) else one,
        (*row.tensors, *given),
    )
    return apply(OPERATORS[row.operator], inputs, {**row.init, row.argument: value})


def test_a_refused_value_of_a_file_is_named(tmp_path):
    cell = CELLS[1](primitive("AvgPool")(2, 2, data_format="NHWC"), (0,), ())
    export(cell, tmp_path / "one.mindir", [np.zeros((1, 4, 4, 2), np.float32)])
    with pytest.raises(StartError, match=r"data_format 1 \(nhwc\), accepted: nchw"):
        opened(tmp_path / "one.mindir")


@pytest.mark.parametrize("name", ENUMERATIONS)
def test_the_numbers_of_an_enumeration_are_those_of_mindspore(name):
    theirs, others = ENUMERATIONS[name]
    numbers = {
        number: audit.shortened(text)
        for text, number in audit.of_headers()[theirs].items()
        if text not in others
    }
    assert dict(getattr(enumerations, name).names) == numbers


def test_every_argument_that_mindspore_enumerates_is_in_the_audit():
    rows = {(row.operator, row.argument) for row in audit.ROWS}
    tried = {(OPERATORS[name], argument) for name, argument in rows}  # some have several names
    others = audit.converted_to_numbers() - {("FlashAttentionScore", "input_layout")}
    assert [one for one in others if (OPERATORS[one[0]], one[1]) not in tried] == []
    assert set(audit.checked_texts()) - rows - FIXED == set()


def test_texts_that_mindspore_accepts_are_those_of_the_audit():
    theirs = audit.checked_texts()
    for row in audit.ROWS:
        if isinstance(row.enumeration, tuple) and (row.operator, row.argument) in theirs:
            accepted = {text.lower() for text in theirs[row.operator, row.argument]}
            assert accepted == {text.lower() for text in row.enumeration}
