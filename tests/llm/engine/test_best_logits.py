"""The engine with a runner that returns the best logits only: answers as with all logits."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.parallel.messages import ToRank
from mindspore_serving.llm.parallel.runner import ParallelRunner
from mindspore_serving.llm.runtimes import rank
from mindspore_serving.llm.step import BestLogits, Logits, Row, Step
from mindspore_serving.process.channel import message_decoder
from tests.llm.toy import ToyRunner


class ChoosingToy(ToyRunner):
    """A toy that leaves its logits on a device."""

    max_best = 15

    def __init__(self) -> None:
        super().__init__(256)
        self.read: list[str] = []

    def run(self, step: Step) -> Logits:
        self.read.append("all")
        return super().run(step)

    def run_best(self, step: Step, count: int) -> BestLogits:
        assert count <= self.max_best
        self.read.append("best")
        logits = super().run(step)
        ids = np.argsort(-logits, axis=1)[:, : self.max_best + 1].astype(np.int32)
        return BestLogits(np.take_along_axis(logits, ids, 1), ids, lambda: logits)


def answers(engine: Engine, requests: list[dict[str, Any]]) -> list[Any]:
    for index, params in enumerate(requests):
        engine.add(str(index), [3, 4, 5, 3, 4, 5, index], SamplingParams(seed=5, **params))
    found: dict[tuple[str, int], Any] = {}
    while engine.has_work:
        for request_id, piece in engine.step():
            before = found.get((request_id, piece.index), ())
            ended = [piece.finish_reason] if piece.finish_reason else []
            found[request_id, piece.index] = (*before, *piece.token_ids, *ended)
    return sorted(found.items(), key=str)


def compared(requests: list[dict[str, Any]], **options: Any) -> ChoosingToy:
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=8, **options)
    runner = ChoosingToy()
    draft = ChoosingToy() if options else None
    chosen = answers(Engine(runner, None, config, draft=draft), requests)
    assert chosen == answers(Engine(ToyRunner(256), None, config), requests)
    return runner


def test_steps_of_greedy_and_top_k_requests_read_the_best_logits() -> None:
    """Also completions of one prompt, and draft tokens, which are verified in the same way."""
    runner = compared([{"temperature": 0.0, "n": 2}, {"top_k": 9, "top_p": 0.8}] * 2)
    assert runner.read.count("best") > 20
    assert runner.read.count("all") <= 6  # chunks of prompts


def test_draft_models_read_the_best_logits() -> None:
    runner = compared([{"temperature": 0.0}] * 3, num_speculative_tokens=3)
    assert "best" in runner.read


def test_steps_with_another_request_read_all_logits() -> None:
    """Of more tokens than the runner returns, with log-probabilities, or all tokens."""
    for params in ({"top_k": 40}, {"temperature": 0.0, "logprobs": 1}, {}):
        assert set(compared([params]).read) == {"all"}


def test_ranks_choose_as_rank_0_does() -> None:
    """Rank 0 reads the best logits, the others drop theirs; one without choices computes all."""
    frames: list[bytes] = []
    channel = SimpleNamespace(write=frames.append)
    ranks = SimpleNamespace(processes=[SimpleNamespace(rank=1, channel=channel)])
    links = SimpleNamespace(begin=lambda step: None, has_exchanged=False)
    local, step = ChoosingToy(), Step((Row([3, 4], 0, [0], 1),))
    runner: Any = ParallelRunner(local, links, ranks)
    assert runner.max_best == local.max_best
    found = runner.run_best(step, 4)
    assert found.ids[0, 0] == found.read_all().argmax()
    assert local.read == ["best"]
    (message,) = message_decoder(ToRank).feed(frames[0])
    other, without = ChoosingToy(), ToyRunner(256)
    np.testing.assert_array_equal(rank._result_of(other, message).ids, found.ids)
    assert other.read == ["best"]
    np.testing.assert_array_equal(rank._result_of(without, message), found.read_all())
