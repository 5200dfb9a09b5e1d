"""Common behaviour of all runners but OpenVINO's: block tables, copies, refusals."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, Runner, Step
from tests.llm import checkpoints
from tests.llm.running import advance, generate, texts

pytestmark = pytest.mark.torch
BLOCK = 8
LIBRARIES = {"torch": "torch", "native": "llvmlite"}
CASES = [
    ("torch", "llama"),
    ("torch", "gemma2"),  # windows and softcap
    ("torch", "baichuan2-13b"),  # ALiBi
    ("native", "gemma2"),
    pytest.param(("mindspore", "mistral"), marks=pytest.mark.mindspore),
    pytest.param(("mindir", "llama"), marks=pytest.mark.mindspore),
]


@dataclass(frozen=True, slots=True)
class Model:
    runtime: str
    source: Path  # the checkpoint, which the reference reads
    served: Path  # what the runtime opens

    def open(self) -> Runner:
        config = EngineConfig(block_size=BLOCK, kv_cache_memory=2**20, kv_cache_dtype="f32")
        return open_runner(self.served, self.runtime, config)

    def check(self, prompt: tuple[int, ...], answer: tuple[int, ...]) -> None:
        assert answer == checkpoints.likeliest(self.source, prompt, answer)


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    runtime, name = request.param
    pytest.importorskip(LIBRARIES.get(runtime, "mindspore"))
    shallow = checkpoints.two_layers(name)
    source = checkpoints.build(name, tmp_path_factory.mktemp(runtime), **shallow)
    served = source
    if runtime == "mindir":
        from mindspore_serving.llm.export_mindir import export_mindir

        served = source.with_name("exported")
        export_mindir(source, served)
    return Model(runtime, source, served)


def test_a_chunk_that_is_not_the_last_has_no_logits(model: Model) -> None:
    runner = model.open()
    (text,) = texts(runner, [checkpoints.prompts(1)[0]], 1)
    assert advance(runner, [text], chunk=10).shape == (0, checkpoints.VOCAB)
    assert text.num_computed == 10


def test_texts_share_the_blocks_of_a_common_prefix(model: Model) -> None:
    """The second text has the first one's first four blocks and computes only what follows."""
    runner = model.open()
    prefix = checkpoints.prompts(1)[0][: 4 * BLOCK]
    prompts = [(*prefix, 7, 8, 9), (*prefix, 100, 11)]
    first, second = texts(runner, prompts, 16)
    advance(runner, [first])
    second.blocks[:4] = first.blocks[:4]
    second.num_computed = 4 * BLOCK
    for prompt, answer in zip(prompts, generate(runner, [first, second], 16), strict=True):
        model.check(prompt, answer)


def test_copies_read_all_blocks_before_writing(model: Model) -> None:
    """Two texts swap their first blocks, and their tables: nothing changes."""
    runner = model.open()
    prompts = [(3, 4, 5), (60, 61)]
    batch = texts(runner, prompts, 4)
    advance(runner, batch)
    a, b = batch[0].blocks[0], batch[1].blocks[0]
    batch[0].blocks[0], batch[1].blocks[0] = b, a
    logits = runner.run(Step(tuple(text.row(1) for text in batch), ((a, b), (b, a))))
    for text, prompt, row in zip(batch, prompts, logits, strict=True):
        expected = checkpoints.logits(model.source, (*prompt, *text.answer))[-1]
        np.testing.assert_allclose(row, expected, atol=1e-4)


def test_released_blocks_change_no_other_blocks_and_can_be_written(model: Model) -> None:
    runner = model.open()
    assert runner.cache_memory.can_release
    prompts = checkpoints.prompts(2)
    for _ in range(2):
        first, second = texts(runner, prompts, 16)
        (answer,) = generate(runner, [second], 16)
        advance(runner, [first])
        runner.release_blocks(second.blocks)
        model.check(prompts[1], answer)
        model.check(prompts[0], generate(runner, [first], 16)[0])


def test_refused_row_leaves_the_cache_unchanged(model: Model) -> None:
    runner = model.open()
    prompt = checkpoints.prompts(1)[0]
    (text,) = texts(runner, [prompt], 8)
    advance(runner, [text])
    overwriting = Row([1] * BLOCK, 0, text.blocks, 1)
    for step, words in (
        (Step((overwriting, Row([1], 0, [runner.num_blocks], 1))), "row 1 has blocks"),
        (Step((overwriting, Row([1], BLOCK, [text.blocks[0]], 1))), "row 1"),
        (Step((overwriting, Row([checkpoints.VOCAB], 0, text.blocks, 1))), "row 1"),
        (Step((overwriting,), ((text.blocks[1], runner.num_blocks),)), "copy"),
    ):
        with pytest.raises(ServingError, match=words):
            runner.run(step)
    model.check(prompt, generate(runner, [text], 8)[0])


def test_a_closed_runner_refuses_steps(model: Model) -> None:
    runner = model.open()
    runner.close()
    with pytest.raises(ServingError, match="closed"):
        runner.run(Step((Row([1], 0, [0], 1),)))
