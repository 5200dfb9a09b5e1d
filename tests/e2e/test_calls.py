"""Calls over gRPC and REST: same answers, and every bad request gets a clear error."""

import base64
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.e2e.harness import both_errors, workers

SOURCE = """
@method("z")
def add(x, y):
    return x + y

@method("text", "same")
def echo(x):
    text = x if isinstance(x, str) else f"{x.dtype}{list(x.shape)}"
    return text, x

@register.register_method(output_names=["x", "y"])
def swap(y, x):
    return x, y

@method("pid")
def pid(x):
    time.sleep(0.002)
    return os.getpid()

def even_only(x):
    if x % 2:
        raise ValueError(f"{int(x)} is odd")
    return x
@register.register_method(output_names=["y"])
def even(x):
    return register.add_stage(even_only, x, outputs_count=1)

def bad(x):
    return {0: (1, 2), 1: None, 2: object(), 3: [[1], [2, 3]], 4: {"a": 1}}[int(x)]
@register.register_method(output_names=["y"])
def wrong(x):
    return register.add_stage(bad, x, outputs_count=1)

def short(batch):
    return [x for x, in batch][:1]
@register.register_method(output_names=["y"])
def few(x):
    return register.add_stage(short, x, outputs_count=1, batch_size=8)
"""


@pytest.fixture(autouse=True)
def still_well(calls):
    """After every test the server answers, and by the same worker as before."""
    before = workers(os.getpid())
    yield
    assert calls.client("toy", "add").infer({"x": 1, "y": 2})[0]["z"] == 3
    assert calls.post("toy", "add", {"x": 1, "y": 2}) == {"instances": [{"z": 3}]}
    assert workers(os.getpid()) == before
    calls.close()


# --- good ones ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [np.arange(6, dtype=t).reshape(2, 3) for t in "bBhHiIlLefd"] + [np.array([True, False])],
    ids=lambda array: str(array.dtype),
)
def test_both_protocols_give_the_same_array(calls, array):
    (result,) = calls.client("toy", "echo").infer({"x": array})
    assert result["text"] == f"{array.dtype}{list(array.shape)}"
    assert result["same"].dtype == array.dtype
    np.testing.assert_array_equal(result["same"], array)
    kind = {"float16": "fp16", "float32": "fp32", "float64": "fp64"}.get(str(array.dtype))
    item = {
        "b64": base64.b64encode(array.tobytes()).decode(),
        "type": kind or str(array.dtype),
        "shape": array.shape,
    }
    (by_rest,) = calls.post("toy", "echo", {"x": item})["instances"]
    assert by_rest == {"text": result["text"], "same": array.tolist()}


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "int32[]"), (1.5, "float32[]"), ([[True]], "bool[1, 1]"), ([1, 2], "int32[2]")],
)
def test_json_values_become_the_types_of_the_protocol(calls, value, text):
    assert calls.post("toy", "echo", {"x": value}) == {"instances": [{"text": text, "same": value}]}


def test_texts_and_bytes_pass_through(calls):
    client = calls.client("toy", "echo")
    assert client.infer({"x": "grüße \U0001f600"})[0]["text"] == "grüße \U0001f600"
    assert client.infer({"x": b"\x00\xff"})[0]["text"] == "uint8[2]"
    assert client.infer({"x": ""})[0] == {"text": "", "same": ""}
    assert calls.post("toy", "echo", {"x": "grüße"})["instances"][0]["text"] == "grüße"


def test_many_instances_come_back_in_order(calls):
    numbers = range(500)
    results = calls.client("toy", "add").infer([{"x": n, "y": 1} for n in numbers])
    assert [r["z"] for r in results] == [n + 1 for n in numbers]
    by_rest = calls.post("toy", "add", [{"x": n, "y": 1} for n in numbers])
    assert by_rest == {"instances": [{"z": n + 1} for n in numbers]}


def test_extra_inputs_are_ignored(calls):
    extra = {"x": 1, "y": 2, "w": "what", "z": 5}
    assert calls.client("toy", "add").infer(extra)[0]["z"] == 3
    assert calls.post("toy", "add", extra) == {"instances": [{"z": 3}]}


def test_a_method_without_stages_hands_its_inputs_on(calls):
    assert calls.post("toy", "swap", {"x": 1, "y": "a"}) == {"instances": [{"x": 1, "y": "a"}]}


def test_empty_arrays_are_values(calls):
    (result,) = calls.client("toy", "echo").infer({"x": np.zeros((3, 0), np.float32)})
    assert result["same"].shape == (3, 0)
    assert result["text"] == "float32[3, 0]"


def test_infinities_and_nan_are_null_in_json_and_exact_over_grpc(calls):
    x = np.float32([np.nan, np.inf, -np.inf, 0])
    np.testing.assert_array_equal(calls.client("toy", "echo").infer({"x": x})[0]["same"], x)
    item = {"b64": base64.b64encode(x.tobytes()).decode(), "type": "fp32", "shape": [4]}
    (result,) = calls.post("toy", "echo", {"x": item})["instances"]
    assert result["same"] == [None, None, None, 0]


def test_many_clients_at_once_each_get_their_own_answer(calls):
    def run(number: int) -> bool:
        if number % 2:
            return (
                calls.post("toy", "add", {"x": number, "y": 7})["instances"][0]["z"] == number + 7
            )
        return calls.client("toy", "add").infer({"x": number, "y": 7})[0]["z"] == number + 7

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(run, range(200)))


# --- what the servable does wrong ---------------------------------------------------------------


def test_a_failing_instance_fails_alone(calls):
    results = calls.client("toy", "even").infer([{"x": 2}, {"x": 3}, {"x": 4}])
    assert [r.get("y") for r in results] == [2, None, 4]
    assert "Call Function 'toy.even_only' Failed, method: 'even'" in results[1]["error"]
    assert "stage 1 of 1, error msg: 3 is odd" in results[1]["error"]
    by_rest = calls.post("toy", "even", [{"x": 2}, {"x": 3}, {"x": 4}])["instances"]
    assert by_rest == [{"y": 2}, {"error_msg": results[1]["error"]}, {"y": 4}]


def test_equal_failures_of_all_instances_become_a_single_error(calls):
    for text in both_errors(calls, "even", [{"x": 3}, {"x": 3}]):
        assert "3 is odd" in text


def test_different_failures_of_instances_are_reported_separately(calls):
    results = calls.client("toy", "even").infer([{"x": 3}, {"x": 5}])
    assert ["3 is odd" in results[0]["error"], "5 is odd" in results[1]["error"]] == [True, True]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (0, "outputs number 2 of one instance returned by function 'toy.bad' is not equal to the"),
        (1, "NoneType"),
        (2, "object"),
        (3, "error msg"),
        (4, "dict"),
    ],
)
def test_a_result_of_wrong_count_or_type_fails_the_request_not_the_worker(calls, case, words):
    for text in both_errors(calls, "wrong", {"x": case}):
        assert words in text
        assert "Traceback" not in text


def test_instances_without_a_result_of_their_batch_fail(calls):
    results = calls.client("toy", "few").infer([{"x": 1}, {"x": 2}, {"x": 3}])
    failed = [r for r in results if "error" in r]
    assert failed
    assert "The number 1 of instances returned by function 'toy.short'" in failed[0]["error"]
