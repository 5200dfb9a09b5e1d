"""Ranks that exchange tensors by torch.distributed: by gloo here, by NCCL on CUDA devices.

No test runs NCCL: that takes two devices.
"""

import os
import signal

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from mindspore_serving.errors import StartError
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel import processes
from mindspore_serving.llm.parallel.group import open_grid
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.runtimes.torch import collectives, opening
from mindspore_serving.llm.step import Row, RunnerLost, StateSlots, Step
from tests.llm import checkpoints
from tests.llm.rank_threads import links

pytestmark = pytest.mark.torch
SMALL = {"dtype": "f32", "num_threads": 2, "kv_cache_memory": 8 << 20, "device": "cpu"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)


@pytest.fixture
def by_gloo(monkeypatch):
    monkeypatch.setitem(collectives.BACKENDS, "cpu", "gloo")
    monkeypatch.setattr(processes, "MODULE", "tests.llm.rank_by_gloo")


@pytest.mark.slow
def test_stages_of_ranks_by_gloo_generate_the_tokens_of_the_reference(built, by_gloo, monkeypatch):
    """The ranks do not divide the vocabulary."""
    monkeypatch.setattr(checkpoints, "SIZES", checkpoints.SIZES | {"vocab_size": 163})
    path = checkpoints.build("llama3-tied", built / "uneven")
    prompts = [list(prompt) for prompt in checkpoints.prompts(2)]
    with LLM(path, "torch", **SMALL, tensor_parallel=2, pipeline_parallel=2) as llm:
        answers = llm.generate(prompts, GREEDY)
    for prompt, answer in zip(prompts, answers, strict=True):
        tokens = answer.outputs[0].token_ids
        assert tokens == checkpoints.likeliest(path, tuple(prompt), tokens)


@pytest.mark.slow
def test_a_group_can_be_opened_after_a_rank_has_died(built, by_gloo):
    """A process has one such group at a time."""
    path = checkpoints.build("falcon-h1", built)
    config = EngineConfig(**SMALL, tensor_parallel=2)
    step = Step((Row((5, 6, 7), 0, (1,), 3, state=StateSlots(-1, 0)),))
    runner = open_runner(path, "torch", config)
    with pytest.raises(StartError, match="has ranks on CUDA devices already: close their LLM"):
        open_runner(path, "torch", config)
    runner.run(step)
    (process,) = runner._ranks.processes
    os.kill(process.process.pid, signal.SIGKILL)
    with pytest.raises(RunnerLost, match="rank 1: ended by signal SIGKILL"):
        runner.run(step)
    runner.close()
    again = open_runner(path, "torch", config)
    logits = again.run(step)
    again.close()
    np.testing.assert_allclose(logits, checkpoints.logits(path, (5, 6, 7)), rtol=1e-3, atol=1e-3)


class EndlessEvent:
    """Stand-in for an event of a device that waits for a rank."""

    def record(self):
        self.is_recorded = True

    def query(self):
        return not self.is_recorded


def test_waiting_for_a_device_ends_when_a_rank_is_lost():
    with links(2) as (first, second):
        second.close()
        with pytest.raises(RunnerLost, match="rank 1 of 2 has ended"):
            collectives.await_event(EndlessEvent(), first)


@pytest.mark.parametrize(
    ("device", "options", "problem"),
    [
        ("cuda", {}, "on CUDA devices, but PyTorch sees 1, expected at least 2"),
        ("cuda:1", {}, 'device is .cuda:1.: set "cuda", each rank takes one'),
        ("cuda", {"expert_parallel": True}, "experts are divided by expert_parallel"),
    ],
)
def test_devices_that_ranks_cannot_have_are_refused(monkeypatch, device, options, problem):
    monkeypatch.setattr(opening, "open_device", lambda name: name)
    monkeypatch.setattr(opening.torch.cuda, "device_count", lambda: 1)
    config = EngineConfig(device=device, tensor_parallel=2, **options)
    with links(2) as pair, pytest.raises(StartError, match=f"tensor_parallel is 2 .*{problem}"):
        opening.rank_device(config, open_grid(pair[1], config))


def test_each_rank_has_a_device(monkeypatch):
    monkeypatch.setattr(opening, "open_device", lambda name: name)
    monkeypatch.setattr(opening.torch.cuda, "device_count", lambda: 2)
    config = EngineConfig(device="cuda", tensor_parallel=2)
    with links(2) as pair:
        devices = [opening.rank_device(config, open_grid(rank, config)) for rank in pair]
    assert devices == ["cuda:0", "cuda:1"]
