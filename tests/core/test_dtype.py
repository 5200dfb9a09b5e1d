"""The table of element types against the published numbers of the MindSpore protocol."""

import numpy as np
import pytest

from mindspore_serving.core import dtype
from mindspore_serving.proto import ms_service_pb2 as pb


@pytest.mark.parametrize("row", dtype.TABLE, ids=lambda row: row.name)
def test_every_number_is_that_of_the_proto_file(row):
    names = {"str": "MS_STRING", "bytes": "MS_BYTES"}
    assert pb.DataType.Value(names.get(row.name, f"MS_{row.name.upper()}")) == row.proto


def test_the_table_has_every_type_of_the_proto_file():
    assert set(dtype.BY_PROTO) == set(pb.DataType.values()) - {pb.MS_UNKNOWN}


@pytest.mark.parametrize(
    ("name", "size"),
    [("bool", 1), ("int8", 1), ("float16", 2), ("int32", 4), ("float64", 8), ("str", 0)],
)
def test_a_size_is_bytes_per_element(name, size):
    assert dtype.BY_NAME[name].size == size


def test_the_type_of_a_value_is_found():
    assert dtype.of(np.zeros(2, np.float16)).name == "float16"
    assert dtype.of("text") is dtype.STR
    assert dtype.of(b"bytes") is dtype.BYTES


def test_values_outside_the_table_have_no_type():
    assert dtype.of(np.zeros(1, np.complex64)) is None
    assert dtype.of(np.array(["a"])) is None
    assert dtype.of([1, 2]) is None


def test_big_endian_is_not_taken_for_little_endian():
    assert dtype.of(np.zeros(1, ">i4")) is None
