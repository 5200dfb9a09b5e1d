import os
import signal

import numpy as np
import pytest

from tests import printed
from tests.e2e.gangs import agents_of
from tests.e2e.harness import eventually

pytestmark = [pytest.mark.torch, pytest.mark.e2e, pytest.mark.slow]

X = np.random.default_rng(3).standard_normal((40, 1024), np.float32)


@pytest.fixture(scope="module")
def matmul(run_gang):
    return run_gang("matmul_sharded", "matmul")


def ask(matmul):
    answers = matmul.client("predict").infer([{"x": row} for row in X])
    return answers if "error" in answers else np.stack([answer["y"] for answer in answers])


def expected(matmul):
    return X @ np.load(matmul.directory / "model" / "weight.npy")


def test_the_sum_over_the_ranks_is_the_product_with_the_whole_matrix(matmul):
    np.testing.assert_allclose(ask(matmul), expected(matmul), rtol=1e-4, atol=1e-3)


def test_the_client_prints_that_the_results_are_equal(matmul):
    assert matmul.run_client() == "y: (2, 256) as of the whole matrix: True\n"


@pytest.mark.long
def test_when_a_rank_dies_the_gang_starts_again_with_a_new_rank(matmul):
    before = agents_of(matmul.agents)
    os.kill(before[2], signal.SIGKILL)
    eventually(lambda: isinstance(ask(matmul), np.ndarray) and agents_of(matmul.agents) != before)
    np.testing.assert_allclose(ask(matmul), expected(matmul), rtol=1e-4, atol=1e-3)
    assert not set(before.values()) & set(agents_of(matmul.agents).values())


def test_the_printed_commands_work(tmp_path, matmul):
    printed.paste_all(matmul.printed_commands(), tmp_path)
