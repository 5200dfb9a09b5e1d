import numpy as np
import pytest

from tests import printed

pytestmark = [pytest.mark.mindspore, pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def add_sub(run_example):
    return run_example("add_sub_pipeline", "add_sub")


def test_both_models_run_in_order(add_sub):
    triples = np.random.default_rng(0).integers(-100, 100, (40, 3, 2, 2))
    instances = [{"x1": a, "x2": b, "x3": c} for a, b, c in triples]
    answers = add_sub.client("add_sub").infer(instances)
    expected = triples[:, 0] + triples[:, 1] - triples[:, 2]
    np.testing.assert_array_equal([answer["y"] for answer in answers], expected)


def test_functions_stand_between_models(add_sub):
    x1, x2, x3 = np.full((2, 2), 3), np.full((2, 2), 4), np.full((2, 2), 5)
    (answer,) = add_sub.client("double_add_sub").infer({"x1": x1, "x2": x2, "x3": x3})
    assert answer["y"].tolist() == [[9, 9], [9, 9]]  # 2 * (3 + 4) - 5
    assert answer["text"] == "sum 28, result 36"


def test_the_client_prints_the_answers(add_sub):
    assert add_sub.run_client().splitlines() == [
        "gRPC add_sub, x3 = 0: [[6.0, 8.0], [10.0, 12.0]]",
        "gRPC add_sub, x3 = 1: [[5.0, 7.0], [9.0, 11.0]]",
        "gRPC add_sub, x3 = 2: [[4.0, 6.0], [8.0, 10.0]]",
        "gRPC double_add_sub, x3 = 0: [[12.0, 16.0], [20.0, 24.0]] | sum 36, result 72",
        "gRPC double_add_sub, x3 = 1: [[11.0, 15.0], [19.0, 23.0]] | sum 36, result 68",
        "gRPC double_add_sub, x3 = 2: [[10.0, 14.0], [18.0, 22.0]] | sum 36, result 64",
        "REST add_sub: {'instances': [{'y': [[5.0, 7.0], [9.0, 11.0]]}]}",
    ]


def test_the_printed_commands_work(tmp_path, add_sub):
    printed.paste_all(add_sub.printed_commands(), tmp_path)
