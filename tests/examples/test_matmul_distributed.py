import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.gangs import agents_of
from tests.e2e.harness import Script
from tests.examples.conftest import ROOT, Example, copy_examples, environment, run_script, started
from tests.ports import free_port

pytestmark = [pytest.mark.mindspore, pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def matmul(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[tuple[Example, Script]]":
    """The example, and its script of agents, which comes first and must end with the server."""
    source, target = ROOT / "examples" / "matmul_distributed", tmp_path_factory.mktemp("run")
    copy = copy_examples(source, target / source.name)
    env = environment() | {"SERVING_AGENT_PORT": str(free_port())}
    run_script(copy / "export_model.py", env)
    agents = Script(copy / "serving_agent.py", env)
    try:
        with started([sys.executable, "serving_server.py"], copy, env) as server:
            yield Example(copy, "matmul", env, server), agents
        assert agents.status() == 0
    finally:
        agents.end()


def test_every_entry_is_minus_48(matmul):
    assert matmul[0].run_client() == "y: (128, 16) from -48.0 to -48.0\n"


def test_each_of_the_eight_agents_has_mindspore_and_the_worker_has_not(matmul):
    example, agents = matmul
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in agents_of(agents).values()]
    assert ["/site-packages/mindspore/" in one for one in maps] == [True] * 8
    assert ["/site-packages/mindspore/" in one for one in example.libraries_of_workers()] == [False]


def test_any_matrix_is_multiplied(matmul):
    x = np.random.default_rng(3).standard_normal((128, 96), np.float32)
    (answer,) = matmul[0].client("predict").infer({"x": x})
    expected = -(x @ np.full((96, 16), 0.5, np.float32))
    np.testing.assert_allclose(answer["y"], expected, rtol=1e-4, atol=1e-4)


def test_the_wrong_shape_is_refused(matmul):
    answer = matmul[0].client("predict").infer({"x": np.ones((128, 97), np.float32)})
    assert "size 49664 not match the size 49152" in answer["error"]
