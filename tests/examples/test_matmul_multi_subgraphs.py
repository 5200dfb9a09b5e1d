import numpy as np
import pytest

from tests import printed

pytestmark = [pytest.mark.mindspore, pytest.mark.e2e, pytest.mark.slow]

WEIGHT = np.random.default_rng(1).standard_normal((96, 16), np.float32)
X = np.random.default_rng(2).standard_normal((64, 96), np.float32)


@pytest.fixture(scope="module")
def matmul(run_example):
    return run_example("matmul_multi_subgraphs", "matmul")


@pytest.mark.parametrize("rows", [64, 1])
def test_each_shape_is_answered_by_its_graph(matmul, rows):
    (answer,) = matmul.client("project").infer({"x": X[:rows]})
    assert answer["y"].shape == (rows, 16)
    np.testing.assert_allclose(answer["y"], X[:rows] @ WEIGHT, rtol=1e-4, atol=1e-4)


def test_instances_of_both_shapes_share_a_request(matmul):
    answers = matmul.client("project").infer([{"x": X}, {"x": X[5:6]}, {"x": X}])
    assert [answer["y"].shape for answer in answers] == [(64, 16), (1, 16), (64, 16)]
    np.testing.assert_allclose(answers[1]["y"], X[5:6] @ WEIGHT, rtol=1e-4, atol=1e-4)


def test_a_shape_of_neither_graph_is_refused(matmul):
    answer = matmul.client("project").infer({"x": X[:2]})
    assert "size 768 not match the size 384" in answer["error"]  # 2 rows given, 1 wanted


def test_a_single_stage_runs_both_graphs(matmul):
    (answer,) = matmul.client("step").infer({"x": X})
    np.testing.assert_allclose(answer["last"], X[-1:] @ WEIGHT, rtol=1e-4, atol=1e-4)
    assert answer["difference"] < 1e-4


def test_the_client_prints_the_answers(matmul):
    sums = WEIGHT.sum(axis=0)
    lines = matmul.run_client().splitlines()
    assert lines[0].startswith("gRPC project: (64, 16)")
    assert lines[1].startswith("gRPC project: (1, 16)")
    printed = [float(number) for number in lines[3].split("[")[1].rstrip("]").split(",")]
    np.testing.assert_allclose(printed, sums[:4], rtol=1e-4, atol=1e-4)


def test_the_printed_commands_work(tmp_path, matmul):
    printed.paste_all(matmul.printed_commands(), tmp_path)
