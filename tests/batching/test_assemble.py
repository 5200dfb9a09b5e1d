import numpy as np
import pytest

from mindspore_serving.batching.assemble import (
    assemble,
    batch_size,
    graph_batch_size,
    group,
    max_rows,
    split,
)
from mindspore_serving.batching.validate import check_instance
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.errors import InvalidInputs, StageFailed, StartError


def spec(**fields):
    return DeclaredModel("m", "mindir", **fields)


def signature(*shapes, dtype="f4", outputs=()):
    kind = np.dtype(dtype) if dtype else None
    inputs = tuple(TensorSpec(f"x{i}", kind, shape) for i, shape in enumerate(shapes))
    return Signature(inputs, tuple(TensorSpec(f"y{i}", kind, s) for i, s in enumerate(outputs)))


def f32(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("shapes", "fields", "size"),
    [
        ([(4, 2), (4, 3)], {}, 4),
        ([(-1, 2), (-1,)], {}, 0),
        ([(4, 2), (-1, 2)], {}, 4),
        ([None], {}, 0),
        ([(4, 2), (7,)], {"without_batch_dim_inputs": (1,)}, 4),
        ([(4, 2), ()], {"with_batch_dim": False}, 1),
    ],
)
def test_the_batch_size_is_the_first_dimension_of_the_batched_inputs(shapes, fields, size):
    assert batch_size(spec(**fields), [signature(*shapes)]) == size
    assert graph_batch_size(spec(**fields), signature(*shapes)) == size


@pytest.mark.parametrize(
    ("graph", "fields", "text"),
    [
        (signature((4, 2), ()), {}, "The shape of model input 1 cannot be empty, "),
        (signature((4, 2), (3, 2)), {}, "model input 1 does not match current batch size 4"),
        (signature((4,), outputs=[(2,)]), {}, "model output 0 does not match current batch size 4"),
        (signature((4,), outputs=[()]), {}, "The shape of model output 0 cannot be empty, "),
        (signature((0, 2)), {}, "The batch size of model input 0 should be > 0"),
        (signature((4,)), {"without_batch_dim_inputs": (1,)}, "contain 1, but the model has 1"),
        (signature((4,)), {"without_batch_dim_inputs": (0,)}, "No model input has a batch"),
    ],
)
def test_shapes_that_contradict_each_other_do_not_start(graph, fields, text):
    with pytest.raises(StartError, match=text):
        batch_size(spec(**fields), [graph])


def test_sub_graphs_must_have_equal_batch_sizes_where_they_are_fixed():
    assert batch_size(spec(), [signature((4,)), signature((-1,))]) == 4
    with pytest.raises(StartError, match=r"equal batch size, they have \[4, 2\]"):
        batch_size(spec(), [signature((4,)), signature((2,))])


@pytest.mark.parametrize(
    ("instance", "text"),
    [
        ([f32(1, 2)], "Given model inputs size 1 less than model inputs size 2"),
        ([f32(1, 2)] * 3, "Given model inputs size 3 greater than model inputs size 2"),
        ([f32(1, 2), f32(1)], "Given model input 1 size 4 not match the size 8 defined in model"),
        (
            [np.array([1, 2], np.int32), f32(1, 2)],
            "Given model input 0 data type kMSI_Int32 not match the data type kMSI_Float32 "
            "defined in model",
        ),
        ([f32(1, 2), "no"], "Given model input 1 data type kMSI_String not match the data type"),
        ([f32(1, 2), b"12345678"], "Given model input 1 data type kMSI_Bytes not match"),
    ],
)
def test_errors_compare_the_instance_with_the_model_inputs(instance, text):
    with pytest.raises(InvalidInputs, match=text):
        check_instance(spec(), signature((3, 2), (3, 2)), instance)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("f8", "f4"), ("i8", "f4"), ("i8", "u1"), ("i4", "i8"), ("f2", "f4"), ("f4", "f2")],
)
def test_numbers_are_cast_to_the_type_of_the_model(given, wanted):
    (row,) = check_instance(spec(), signature((3, 2), dtype=wanted), [np.array([1, 2], given)])
    np.testing.assert_array_equal(row, np.array([1, 2], wanted), strict=True)


@pytest.mark.parametrize(
    ("value", "shape", "text"),
    [
        (np.ones((2, 2), "i4"), (8, 2, 2), "is int32 [2, 2], expected float32 [2, 2]: an array"),
        (np.array([1e39]), (8, 1), "is float64 [1], expected float32 [1]: 1e+39 is out of the"),
        (np.ones(3, "f8"), (8, 2), "is float32 [3], expected float32 [2]"),
        (np.ones(3, "f4"), (8, -1, 2), "is float32 [3], expected float32 [-1, 2]"),
        ("no", (8, 2), "is a str, expected float32 [2]"),
        (b"no", None, "is bytes, expected float32 any shape"),
    ],
)
def test_an_error_names_the_input_and_type_and_shape_given_and_wanted(value, shape, text):
    with pytest.raises(InvalidInputs) as caught:
        check_instance(spec(), signature(shape), [value])
    assert f"input 'x0' {text}" in str(caught.value)


def test_an_array_that_fits_is_not_copied():
    array = f32(1, 2)
    (row,) = check_instance(spec(), signature((3, 2)), [array])
    assert np.shares_memory(row, array)


def test_an_array_of_the_right_size_is_reshaped():
    (row,) = check_instance(spec(), signature((3, 2, 2)), [f32(1, 2, 3, 4)])
    assert row.tolist() == [[1, 2], [3, 4]]
    (scalar,) = check_instance(spec(), signature((3,)), [f32(7)])
    assert scalar.shape == ()


@pytest.mark.parametrize("shape", [(2, 3), (4,), (1, 4, 2)])
def test_where_dimensions_are_open_rank_and_known_dimensions_must_fit(shape):
    with pytest.raises(InvalidInputs, match=r"not match the shape \[-1, 2\] defined in model"):
        check_instance(spec(), signature((8, -1, 2)), [np.zeros(shape, np.float32)])
    (row,) = check_instance(spec(), signature((8, -1, 2)), [np.zeros((5, 2), np.float32)])
    assert row.shape == (5, 2)


def test_a_model_of_unknown_types_takes_any_array_and_bytes_but_no_text():
    unknown = signature(None, dtype=None)
    (row,) = check_instance(spec(), unknown, [b"ab"])
    assert row.tolist() == [97, 98]
    with pytest.raises(InvalidInputs, match="kMSI_String, but a model takes arrays only"):
        check_instance(spec(), unknown, ["ab"])


def test_a_fixed_batch_is_filled_with_the_first_instance():
    (batch,) = assemble(spec(), [(f32(1, 2),), (f32(3, 4),)], 4)
    assert batch.tolist() == [[1, 2], [3, 4], [1, 2], [1, 2]]


def test_an_open_batch_is_as_large_as_its_instances():
    (batch,) = assemble(spec(), [(f32(1, 2),), (f32(3, 4),)], 0)
    assert batch.tolist() == [[1, 2], [3, 4]]


def test_a_batch_of_size_1_is_a_view():
    row = f32(1, 2)
    (batch,) = assemble(spec(), [(row,)], 0)
    assert batch.shape == (1, 2)
    assert np.shares_memory(batch, row)


def test_inputs_without_batch_dimension_are_taken_whole():
    fields = spec(without_batch_dim_inputs=(1,))
    batch, table = assemble(fields, [(f32(1), f32(9, 8, 7)), (f32(2), f32(9, 8, 7))], 0)
    assert batch.tolist() == [[1], [2]]
    assert table.tolist() == [9, 8, 7]


def test_rows_with_unequal_unbatched_inputs_never_share_a_run():
    fields = spec(without_batch_dim_inputs=(1,))
    rows = [(f32(1), f32(9)), (f32(2), f32(8)), (f32(3), f32(9))]
    assert group(fields, rows) == [[0, 2], [1]]


def test_instances_of_other_shapes_or_types_never_share_a_run():
    rows = [(f32(1, 2),), (f32(1),), (np.array([1.0, 2.0]),), (f32(3, 4),)]
    assert group(spec(), rows) == [[0, 3], [1], [2]]


def test_without_batch_dimension_every_instance_is_alone():
    rows = [(f32(1),), (f32(1),)]
    assert group(spec(with_batch_dim=False), rows) == [[0], [1]]
    (array,) = assemble(spec(with_batch_dim=False), rows[:1], 1)
    assert array.shape == (1,)


def test_results_are_split_row_by_row_into_memory_of_their_own():
    matrix, vector = f32([1, 2], [3, 4], [0, 0]), f32(5, 6, 0)
    first, second = split(spec(), [matrix, vector], 2, 3)
    matrix[:] = vector[:] = -1
    assert [array.tolist() for array in first] == [[1, 2], 5]
    assert [array.tolist() for array in second] == [[3, 4], 6]
    assert first[1].shape == ()
    assert all(array.flags.c_contiguous for array in (*first, *second))


@pytest.mark.parametrize("shape", [(), (2,), (1, 3)])
def test_an_output_whose_first_dimension_is_not_the_batch_is_named(shape):
    with pytest.raises(StageFailed, match="of model output 1 does not match current batch size 3"):
        split(spec(), [np.zeros(3), np.zeros(shape)], 3, 3)


def test_without_batch_dimension_results_are_whole():
    output = f32([1, 2], [3, 4])
    ((whole,),) = split(spec(with_batch_dim=False), [output], 1, 1)
    assert whole.tolist() == [[1, 2], [3, 4]]
    assert not np.shares_memory(whole, output)


def test_row_limit_is_the_smallest_of_the_batched_inputs():
    inputs = tuple(
        TensorSpec(f"x{i}", None, (-1,), max_rows=rows) for i, rows in enumerate((8, 0, 4))
    )
    assert max_rows(spec(), Signature(inputs, ())) == 4
    assert max_rows(spec(without_batch_dim_inputs=(2,)), Signature(inputs, ())) == 8
    assert max_rows(spec(), Signature(inputs[1:2], ())) == 0


@pytest.mark.parametrize("shape", [None, (-1,), (-1, 1)])
def test_text_instances_are_stacked_and_split(shape):
    texts = signature(shape, dtype="U")
    rows = [check_instance(spec(), texts, [text]) for text in ("é", "", "abc")]
    (batch,) = assemble(spec(), rows, 0)
    assert batch.ravel().tolist() == ["é", "", "abc"]
    assert split(spec(), [batch], 3, 3) == [("é",), ("",), ("abc",)]


def test_number_for_text_input_is_refused():
    with pytest.raises(InvalidInputs, match="not match the data type kMSI_String defined in model"):
        check_instance(spec(), signature((-1,), dtype="U"), [f32(1)])


def test_output_of_several_texts_per_instance_is_refused():
    with pytest.raises(StageFailed, match="Model output 0 is 2 texts for an instance"):
        split(spec(), [np.array([["a", "b"]], object)], 1, 1)
