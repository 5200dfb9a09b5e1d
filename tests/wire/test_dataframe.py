"""DataFrames in the forms that pandas writes, against pandas' own reading of them."""

import json

import msgspec
import pytest

from mindspore_serving.core.signature import ValueSpec
from mindspore_serving.errors import InvalidInputs, TooLarge
from mindspore_serving.wire import dataframe
from mindspore_serving.wire.tensor import MAX_INSTANCES

ROW = (ValueSpec("x", "float32", (3,), columns=("length", "width", "kind_of")),)
UNNAMED = (ValueSpec("x", "float64", (2,)),)
COLUMNS = (ValueSpec("size", "float32", ()), ValueSpec("colour", "str", ()))
READ = {
    "split": dataframe.from_split,
    "records": dataframe.from_records,
    "columns": dataframe.from_columns,
}


def read(form, value, inputs):
    text = value if isinstance(value, str) else json.dumps(value)
    instances = READ[form](msgspec.Raw(text.encode()), inputs)
    return [json.loads(instance) for instance in instances]


@pytest.mark.parametrize("form", ["split", "records", "columns"])
def test_orients_of_pandas_become_rows_in_the_order_of_training(form):
    pandas = pytest.importorskip("pandas", reason="it writes these forms")
    frame = pandas.DataFrame(
        {"kind of": [True, False], "length": [1, 2], "width": [0.5, None]}, index=["b", "a"]
    )
    assert read(form, frame.to_json(orient=form), ROW) == [
        {"x": [1, 0.5, 1]},
        {"x": [2, None, 0]},
    ]


@pytest.mark.parametrize("form", ["split", "records", "columns"])
def test_columns_are_inputs_of_their_names(form):
    pandas = pytest.importorskip("pandas", reason="it writes these forms")
    frame = pandas.DataFrame({"colour": ["red", 3], "size": [1.5, 2]})
    assert read(form, frame.to_json(orient=form), COLUMNS) == [
        {"size": 1.5, "colour": "red"},
        {"size": 2, "colour": "3"},
    ]


def test_lists_of_columns_are_rows():
    assert read("columns", {"size": [1, 2], "colour": ["a", "b"]}, COLUMNS)[1] == {
        "size": 2,
        "colour": "b",
    }


def test_without_names_the_order_is_that_of_training():
    expected = [{"x": [1, 2]}]
    assert read("split", {"data": [[1, 2]]}, UNNAMED) == expected
    assert read("records", [{"any": 1, "name": 2}], UNNAMED) == expected
    assert read("split", {"columns": ["x"], "data": [[[1, 2]]]}, UNNAMED) == expected


def test_optional_inputs_can_be_left_out():
    inputs = (*COLUMNS, ValueSpec("limit", "int32", (), True))
    frame = {"columns": ["colour", "size"], "data": [["red", 1]]}
    assert read("split", frame, inputs) == [{"size": 1, "colour": "red"}]


def test_literals_of_python_are_read():
    assert bytes(dataframe.from_split(msgspec.Raw(b'{"data": [[NaN, 1]]}'), UNNAMED)[0]) == (
        b'{"x":[NaN,1]}'
    )


@pytest.mark.parametrize(
    ("form", "value", "inputs", "text"),
    [
        (
            "records",
            [{"length": 1, "kind_of": 2, "colour": 3}],
            ROW,
            "the DataFrame misses 'width' and has unknown 'colour', expected the columns 'length', "
            "'width', 'kind_of', in any order",
        ),
        (
            "split",
            {"columns": ["length", "width", "kind_of", "length"], "data": [[1, 2, 3, 4]]},
            ROW,
            "the DataFrame has twice 'length', expected the columns",
        ),
        (
            "split",
            {"columns": ["length", "width", "kind_of"], "data": [[1, 2, 3], [1, 2]]},
            ROW,
            "row 1 of the DataFrame has 2 values, expected 3, one for each column",
        ),
        (
            "records",
            [{"size": 1, "colour": "a"}, {"size": 1}],
            COLUMNS,
            "row 1 of the DataFrame has other columns than row 0, by 'colour'",
        ),
        ("records", [{"a": 1}], UNNAMED, "has 1 columns, expected 2, in the order of training"),
        ("columns", {"size": {"0": 1}, "colour": {"1": 2}}, COLUMNS, "has not the rows of 'size'"),
        ("split", {"columns": ["size"]}, COLUMNS, "is not as expected, {\"columns\": [NAME, ...]"),
        ("records", [], ROW, "the DataFrame has no rows"),
        ("columns", {}, ROW, "the DataFrame misses 'length', 'width', 'kind_of'"),
        ("columns", {"size": 1, "colour": 2}, COLUMNS, "is not as expected, rows of column 'size'"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused_in_a_sentence(form, value, inputs, text):
    with pytest.raises(InvalidInputs) as caught:
        read(form, value, inputs)
    assert text in str(caught.value)


def test_rows_are_counted_before_they_are_decoded():
    many = "[" + ",".join(["{}"] * (MAX_INSTANCES + 1)) + "]"
    with pytest.raises(TooLarge):
        read("records", many, ROW)
    wide = json.dumps({"data": [[0] * (dataframe.MAX_COLUMNS + 1)]})
    with pytest.raises(TooLarge):
        read("split", wide, UNNAMED)
