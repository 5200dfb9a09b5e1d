"""Every architecture that is a row of `architectures`, in float32, against transformers."""

from pathlib import Path

import pytest

pytest.importorskip("openvino")
pytest.importorskip("transformers")

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Runner
from tests.llm import architectures, checkpoints
from tests.llm.stepping import all_logits, greedy, relative_error, shuffled_tables

pytestmark = pytest.mark.torch
ROUNDING = 1e-5  # of the largest logit
COUNT = 24  # greedy tokens
AFTER = 40  # other tokens behind them, so that 124 positions are compared
OPTIONS = {"openvino": {"dtype": "f32"}, "torch": {"device": "cpu", "block_size": 8}}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def opened(root: Path, name: str, runtime: str) -> tuple[Path, Runner]:
    if not (root / name).exists():
        checkpoints.build(name, root)
    config = EngineConfig(
        max_num_seqs=4, max_num_batched_tokens=64, kv_cache_memory=2**21, **OPTIONS[runtime]
    )
    return root / name, open_runner(root / name, runtime, config)


@pytest.mark.parametrize("runtime", OPTIONS)
@pytest.mark.parametrize("name", architectures.ALL)
def test_logits_and_greedy_tokens_are_the_references(root: Path, name: str, runtime: str) -> None:
    """Three prompts of unequal lengths, in pieces beside texts that decode; then a prompt whose
    beginning is in the cache."""
    directory, runner = opened(root, name, runtime)
    prompts = checkpoints.prompts(3)
    tables = shuffled_tables(runner, 4)
    answers = greedy(runner, prompts, COUNT, tables=tables[:3], chunk=17, arrivals=[0, 2, 7])
    for prompt, answer in zip(prompts, answers, strict=True):
        assert checkpoints.shortfall(directory, prompt, answer) < ROUNDING
    assert len({token for answer in answers for token in answer}) > 5  # no model that repeats one
    whole, known = [*prompts[0], *answers[0], *prompts[0][:AFTER]], 32
    computed = all_logits(runner, whole, kept=known)
    assert relative_error(computed, checkpoints.logits(directory, whole)) < 1e-4

    again = (*prompts[0][:known], 7, 8, 9)
    shared = known // runner.block_size
    table = [*shuffled_tables(runner, 1)[0][:shared], *tables[3]]
    (answer,) = greedy(runner, [again], 8, tables=[table], computed=[known])
    assert checkpoints.shortfall(directory, again, answer) < ROUNDING
    runner.close()
