"""Agents whose MindIR files have collective operators, on a CPU."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import run
from tests.e2e.gangs import GangScripts
from tests.ports import free_port

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]

EXPORT = """
import sys
import mindspore as ms
import numpy as np
from mindspore import nn, ops

class Part(nn.Cell):
    def __init__(self, rows):
        super().__init__()
        self.rows = rows
        self.weight = ms.Parameter(ms.Tensor(np.load("weight.npy")[rows]), name="weight")
        self.sum = ops.AllReduce(group="mccl_world_group")

    def construct(self, x):
        return self.sum(ops.matmul(x[:, self.rows], self.weight))

x = ms.Tensor(np.zeros((4, 6), np.float32))
for rank, rows in enumerate((slice(0, 3), slice(3, 6))):
    ms.export(Part(rows), x, file_name=f"rank{rank}", file_format="MINDIR")
"""

SCHEDULER = """
import mindspore
from mindspore.communication import init

mindspore.set_device("CPU")
init()
"""

FILES = ["rank0.mindir", "rank1.mindir"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("exported")
    np.save(directory / "weight.npy", np.random.default_rng(1).standard_normal((6, 2), np.float32))
    (directory / "export.py").write_text(EXPORT)
    done = run([sys.executable, "export.py"], directory)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture
def gang(exported: Path, tmp_path: Path):
    made = GangScripts(tmp_path, spec="1, with_batch_dim=False")
    shutil.copytree(exported, tmp_path, dirs_exist_ok=True)
    yield made
    made.close()


def test_two_ranks_sum_their_partial_products(gang):
    meeting = {
        "MS_WORKER_NUM": "2",
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": str(free_port()),
    }
    gang.run("scheduler.py", SCHEDULER, MS_ROLE="MS_SCHED", **meeting)
    gang.start_agents(FILES, environment={"MS_ROLE": "MS_WORKER", **meeting})
    gang.start_server("").says("it serves")
    x = np.random.default_rng(2).standard_normal((4, 6), np.float32)
    with gang.client() as client:
        (answer,) = client.infer({"x": x})
    weight = np.load(gang.directory / "weight.npy")
    np.testing.assert_allclose(answer["y"], x @ weight, rtol=1e-4, atol=1e-5)


def test_without_a_scheduler_the_reason_is_said(exported, stopped):
    made = GangScripts(stopped, 1, spec="1, with_batch_dim=False")
    shutil.copytree(exported, stopped, dirs_exist_ok=True)
    agents = made.start_agents(FILES[:1])
    reason = "it communicates with other ranks (AllReduce), which connect by a scheduler on a CPU"
    try:
        with pytest.raises(RuntimeError, match=re.escape(reason)):
            made.start_server_here()
        assert agents.status() == 1
        assert reason in agents.text
    finally:
        made.close()
