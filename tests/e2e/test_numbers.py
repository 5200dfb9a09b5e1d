"""Ordinary numbers, over both protocols, to models that want one type; and what is refused."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.harness import Calls, config, eventually, serving, write_servable

SOURCE = """
from mindspore_serving.core.value import Signature, TensorSpec

def declare(dtype):
    def triple(x):
        return (x.astype("f8") * 3).astype(dtype)

    triple.__name__ = f"triple_{dtype}"
    spec = lambda name: TensorSpec(name, np.dtype(dtype), (-1, 2))
    triple.signature = Signature((spec("x"),), (spec("y"),))
    return register.declare_model(triple, model_format="Python")

def register_model(model, name):
    def method(x):
        return register.add_stage(model, x, outputs_count=1)
    method.__name__ = name
    register.register_method(output_names=["y"])(method)

models = {dtype: declare(dtype) for dtype in ("float32", "float16", "int32", "int64", "uint8")}
for dtype, model in models.items():
    register_model(model, dtype)

def get_owner(x):
    return os.environ.get("SERVING_DEVICE_ID", "none")

@register.register_method(output_names=["y", "dtype", "owner"])
def seen(x):
    y = register.add_stage(models["int64"], x, outputs_count=1)
    dtype = register.add_stage(lambda x: str(x.dtype), x, outputs_count=1)
    return y, dtype, register.add_stage(get_owner, x, outputs_count=1)
"""


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    directory: Path = tmp_path_factory.mktemp("numbers")
    write_servable(directory, "triple", SOURCE)
    options = {"device_type": "cpu", "device_ids": 0, "num_parallel_workers": 2}
    with serving(directory, config(directory, "triple", **options)) as made:
        yield made


@pytest.mark.parametrize(
    ("method", "x"),
    [
        ("float32", [1, 2]),
        ("float32", [1, 0.5]),
        ("float16", [1, 0.25]),
        ("int32", [5.0, 2]),
        ("int64", [2**40, -1]),
        ("uint8", [0, 85]),
    ],
)
def test_json_numbers_get_the_dtype_of_the_model(calls: Calls, method: str, x: Any) -> None:
    assert calls.post("triple", method, [{"x": x}]) == {"instances": [{"y": [3 * n for n in x]}]}


@pytest.mark.parametrize(
    ("method", "x", "text"),
    [
        ("int32", [5.5, 1], "is float32 [2], expected int32 [2]: an array of float32 is not cast"),
        ("uint8", [256, 1], "is int32 [2], expected uint8 [2]: 256 is out of the range of uint8"),
        ("int32", [2**31, 1], "is int64 [2], expected int32 [2]: 2147483648 is out of the range"),
        ("float16", [1e5, 1], "is float32 [2], expected float16 [2]: 100000.0 is out of the"),
        ("float32", [True, False], "is bool [2], expected float32 [2]: an array of bool is not"),
        ("float32", [1, 2, 3], "is float32 [3], expected float32 [2]"),
        ("float32", "text", "is a str, expected float32 [2]"),
    ],
)
def test_a_lossy_conversion_fails_only_its_instance(
    calls: Calls, method: str, x: Any, text: str
) -> None:
    good, bad = calls.post("triple", method, [{"x": [1, 2]}, {"x": x}])["instances"]
    assert good == {"y": [3, 6]}
    assert f"input 'x' {text}" in bad["error_msg"]
    assert bad["error_msg"].endswith(" (instance 1, counted from 0)")


def test_unreadable_values_are_named_with_their_instance(calls: Calls) -> None:
    reply = calls.post("triple", "int32", [{"x": [1, 2]}] * 40 + [{"x": [1, None]}])
    assert "null is a missing value of floats, the input is int32" in reply["error_msg"]
    assert reply["error_msg"].endswith("(input x) (instance 40, counted from 0)")


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("method", ["float32", "float16"])
def test_missing_values_reach_floats_through_json_and_come_back_as_null(
    calls: Calls, method: str, missing: float | None
) -> None:
    x = [missing, 1.5]  # NaN and infinities are written as Python writes them
    reply = calls.post("triple", method, [{"x": x}] * 64)
    assert reply == {"instances": [{"y": [None, 4.5]}] * 64}
    datatype = {"float32": "FP32", "float16": "FP16"}[method]
    tensor = {"name": "x", "datatype": datatype, "shape": [2, 2], "data": [*x, *x]}
    body = json.dumps({"inputs": [tensor]})
    status, text, *_ = calls.http_call("POST", f"/v2/models/triple.{method}/infer", body)
    assert (status, json.loads(text)["outputs"][0]["data"]) == (200, [None, 4.5] * 2)
    (answer,) = calls.client("triple", method).infer({"x": x})
    expected = np.array([np.nan if missing is None else missing, 4.5], method)
    np.testing.assert_array_equal(answer["y"], expected, strict=True)


def test_every_worker_knows_the_types(calls: Calls) -> None:
    owners: set[str] = set()

    def ask() -> bool:
        rows = calls.post("triple", "seen", [{"x": [1.0, k]} for k in range(64)])["instances"]
        assert [row["y"] for row in rows] == [[3, 3 * k] for k in range(64)]
        assert {row["dtype"] for row in rows} == {"int64"}
        owners.update(row["owner"] for row in rows)
        return owners == {"0", "none"}

    eventually(ask)


@pytest.mark.parametrize(
    ("method", "x"),
    [
        ("float32", [1, 2]),
        ("float32", [0.5, 2]),
        ("float32", np.array([0.1, 2.0])),
        ("float16", (1, 2.5)),
        ("int64", np.array([1, 2], np.int32)),
        ("uint8", [1, 2]),
    ],
)
def test_lists_and_wider_arrays_get_the_dtype_of_the_model(
    calls: Calls, method: str, x: Any
) -> None:
    (answer,) = calls.client("triple", method).infer({"x": x})
    expected = (np.array(x, method).astype("f8") * 3).astype(method)
    np.testing.assert_array_equal(answer["y"], expected, strict=True)


@pytest.mark.parametrize(
    ("method", "x"),
    [
        ("float32", np.array([1, 2], np.int32)),
        ("float32", [2**24 + 1, 0]),
        ("int32", [5.0, 1.0]),
        ("uint8", [256, 0]),
        ("float32", np.array([1e39, 0])),
    ],
)
def test_arrays_are_not_cast_where_something_would_be_lost(
    calls: Calls, method: str, x: Any
) -> None:
    good = {"x": np.array([1, 2], method)}
    first, bad = calls.client("triple", method).infer([good, {"x": x}])
    assert first["y"].tolist() == [3, 6]
    wanted = {"float32": "Float32", "int32": "Int32", "uint8": "Uint8"}[method]
    assert f"not match the data type kMSI_{wanted} defined in model" in bad["error"]
    assert bad["error"].endswith("(instance 1, counted from 0)")


def test_servables_lists_the_types_and_shapes(calls: Calls) -> None:
    ((row,),) = json.loads(calls.http_call("GET", "/servables")[1]).values()
    method = row["methods"]["float32"]
    example = {"value": 1.0, "shape": [2]}
    assert method["input_specs"] == [
        {"name": "x", "dtype": "float32", "shape": [2], "example": example}
    ]
    assert method["output_specs"] == [{"name": "y", "dtype": "float32", "shape": [2]}]
    names = row["methods"]["seen"]["output_specs"]
    assert [(one["name"], one["dtype"]) for one in names] == [
        ("y", "int64"),
        ("dtype", None),
        ("owner", None),
    ]
