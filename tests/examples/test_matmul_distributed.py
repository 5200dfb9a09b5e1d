from pathlib import Path

import numpy as np
import pytest

from tests import printed
from tests.e2e.gangs import agents_of

pytestmark = [pytest.mark.mindspore, pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def matmul(run_gang):
    return run_gang("matmul_distributed", "matmul")


def test_every_entry_is_minus_48(matmul):
    assert matmul.run_client() == "y: (128, 16) from -48.0 to -48.0\n"


def test_each_of_the_eight_agents_has_mindspore_and_the_worker_has_not(matmul):
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in agents_of(matmul.agents).values()]
    assert ["/site-packages/mindspore/" in one for one in maps] == [True] * 8
    assert ["/site-packages/mindspore/" in one for one in matmul.libraries_of_workers()] == [False]


def test_any_matrix_is_multiplied(matmul):
    x = np.random.default_rng(3).standard_normal((128, 96), np.float32)
    (answer,) = matmul.client("predict").infer({"x": x})
    expected = -(x @ np.full((96, 16), 0.5, np.float32))
    np.testing.assert_allclose(answer["y"], expected, rtol=1e-4, atol=1e-4)


def test_the_wrong_shape_is_refused(matmul):
    answer = matmul.client("predict").infer({"x": np.ones((128, 97), np.float32)})
    assert "size 49664 not match the size 49152" in answer["error"]


def test_the_printed_commands_work(tmp_path, matmul):
    printed.paste_all(matmul.printed_commands(), tmp_path)
