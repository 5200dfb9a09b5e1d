import numpy as np
import pytest

from tests import printed

pytestmark = [pytest.mark.mindspore, pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def add(run_example):
    return run_example("add", "add")


def test_every_instance_gets_its_own_sum(add):
    rng = np.random.default_rng(0)
    pairs = rng.standard_normal((50, 2, 2, 2), np.float32)
    answers = add.client("add_common").infer([{"x1": a, "x2": b} for a, b in pairs])
    np.testing.assert_array_equal([answer["y"] for answer in answers], pairs.sum(axis=1))


def test_each_device_id_has_a_worker_with_the_model(add):
    libraries = add.libraries_of_workers()
    assert len(libraries) == 2
    assert all("/site-packages/mindspore/" in one for one in libraries)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "float16", "float64"])
def test_the_cast_stage_takes_any_number_type(add, dtype):
    x1, x2 = np.array([[1, 2], [3, 4]], dtype), np.array([[5, 6], [7, 8]], dtype)
    (answer,) = add.client("add_cast").infer({"x1": x1, "x2": x2})
    assert answer["y"].dtype == np.float32
    assert answer["y"].tolist() == [[6, 8], [10, 12]]


def test_the_wrong_type_fails_alone(add):
    good = {"x1": np.ones((2, 2), np.float32), "x2": np.ones((2, 2), np.float32)}
    bad = {"x1": np.ones((2, 2), np.int32), "x2": np.ones((2, 2), np.float32)}
    first, second, third = add.client("add_common").infer([good, bad, good])
    assert first["y"].tolist() == third["y"].tolist() == [[2, 2], [2, 2]]
    assert "kMSI_Int32" in second["error"]


def test_rest_answers_the_same(add):
    instances = [{"x1": [[1, 2], [3, 4]], "x2": [[k, k], [k, k]]} for k in range(3)]
    assert add.post("add_cast", instances) == [
        {"y": [[1 + k, 2 + k], [3 + k, 4 + k]]} for k in range(3)
    ]


def test_the_client_prints_the_sums(add):
    assert add.run_client().splitlines() == [
        "gRPC add_common, 1 * [[1, 2], [3, 4]] + 1: [[2.0, 3.0], [4.0, 5.0]]",
        "gRPC add_common, 2 * [[1, 2], [3, 4]] + 1: [[3.0, 5.0], [7.0, 9.0]]",
        "gRPC add_common, 3 * [[1, 2], [3, 4]] + 1: [[4.0, 7.0], [10.0, 13.0]]",
        "gRPC add_cast, int32: [[2.0, 3.0], [4.0, 5.0]]",
        "gRPC add_cast, int64: [[2.0, 3.0], [4.0, 5.0]]",
        "gRPC add_cast, float64: [[2.0, 3.0], [4.0, 5.0]]",
        "REST add_cast: {'instances': [{'y': [[11.0, 22.0], [33.0, 44.0]]}]}",
    ]


def test_the_printed_commands_work(tmp_path, add):
    printed.paste_all(add.printed_commands(), tmp_path)
