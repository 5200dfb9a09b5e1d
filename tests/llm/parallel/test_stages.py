"""A model whose layers are cut over stages: tokens of one process, pieces in order, refusals."""

import os

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm import LLM, SamplingParams, runtimes
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.models.stage_arrays import received_width, sent_width
from mindspore_serving.llm.parallel import ring
from mindspore_serving.llm.parallel.part import cut_layers
from mindspore_serving.llm.runtimes import open_runner, stages
from mindspore_serving.llm.runtimes.stages import micro_batches
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.lora_files import INNER, OUTSIDE, adapter, merged, write
from tests.llm.rank_threads import ranks
from tests.llm.running import check, generate, generate_staggered, texts
from tests.waiting import PATIENCE

pytestmark = pytest.mark.torch
COUNT = 9  # more than a block of torch
RUNTIMES = pytest.mark.parametrize("runtime", ["torch", "openvino"])
PIPELINE = "pipeline_parallel"
TENSOR = "tensor_parallel"


@pytest.fixture(scope="module", params=["llama3-tied", "gpt2", "gemma3", "mixtral", "gemma4"])
def each(built, request):
    return checkpoints.build(request.param, built)


@RUNTIMES
def test_two_stages_generate_the_tokens_of_the_reference(each, runtime):
    """Also architectures that are not cut layer by layer."""
    path, prompts = each, [(5,), *checkpoints.prompts(2)]
    with ranks(path, 2, runtime, by=PIPELINE) as runner:
        answers = generate_staggered(runner, texts(runner, prompts, COUNT), COUNT, chunk=7)
    check(path, prompts, answers)


@RUNTIMES
@pytest.mark.parametrize("name", ["llama", "gemma3n-uneven"])
def test_three_stages_with_many_pieces_in_flight_do_so_too(built, name, runtime, monkeypatch):
    """The last stage of Gemma 3n attends to keys and values of the first and of the second."""
    path = checkpoints.build(name, built / "deep")
    monkeypatch.setattr(runtimes, "has_dedicated_cores", lambda *_: True)
    monkeypatch.setattr(stages, "MIN_MICRO_BATCH", 1)
    monkeypatch.setattr(stages, "MAX_MICRO_BATCH", 3)
    prompts = checkpoints.prompts(4)
    with ranks(path, 3, runtime, by=PIPELINE) as runner:
        answers = generate(runner, texts(runner, prompts, COUNT), COUNT)
    check(path, prompts, answers)


@pytest.mark.parametrize(
    ("name", "stage_layers", "widths"),
    [
        # A state, inputs of 4 layers, keys and values of layer 1; then of layers 1 and 2.
        ("gemma4", "2:2:2", [(0, 64 + 4 * 8 + 128), (64 + 4 * 8 + 128, 64 + 16 + 192), (272, 0)]),
        ("gemma3n-uneven", "3:3", [(0, 3 * 64 + 24 + 128), (3 * 64 + 24 + 128, 0)]),
        ("llama", "1:2", [(0, 64), (64, 0)]),
    ],
)
def test_stages_send_the_inputs_of_later_layers(built, name, stage_layers, widths):
    spec, _ = load_definition(checkpoints.configuration(name))
    size = len(widths)
    parts = [cut_layers(spec, rank, size, stage_layers) for rank in range(size)]
    assert [(received_width(part), sent_width(part)) for part in parts] == widths


@RUNTIMES
@pytest.mark.parametrize(("modules", "by"), [(INNER, PIPELINE), (INNER, TENSOR), (OUTSIDE, TENSOR)])
def test_ranks_have_their_parts_of_adapters(llama, runtime, modules, by, tmp_path):
    tensors = adapter(llama, modules, seed=3)
    path = write(tmp_path / "adapter", tensors)
    prompt = checkpoints.prompts(1)[0][:9]
    rows = tuple(Row(prompt, 0, blocks, 9, number) for blocks, number in (([3], 1), ([1], 0)))
    config = EngineConfig(dtype="f32", kv_cache_dtype="f32", kv_cache_memory=2**20)
    directories = merged(llama, tensors, tmp_path / "merged"), llama
    options = {"kv_cache_dtype": "f32", "adapters": {"a": str(path)}}
    if runtime == "torch":
        options["block_size"] = 32
    with ranks(llama, 2, runtime, by=by, **options) as runner:
        logits_of_rows = np.split(runner.run(Step(rows)), 2)
    for directory, logits in zip(directories, logits_of_rows, strict=True):
        expected = open_runner(directory, runtime, config).run(Step((Row(prompt, 0, [1], 9),)))
        np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)


def test_adapters_of_the_embedding_are_refused_by_stages(llama, tmp_path):
    path = write(tmp_path / "adapter", adapter(llama, OUTSIDE, seed=3))
    with (
        pytest.raises(StartError, match="which stages do not adapt"),
        ranks(llama, 2, by=PIPELINE, adapters={"a": str(path)}),
    ):
        pass


def test_logits_larger_than_an_array_come_in_pieces(llama, monkeypatch):
    monkeypatch.setattr(ring, "PART_BYTES", 2000)  # 3 rows of logits, 7 of hidden states
    step = Step((Row(checkpoints.prompts(1)[0][:9], 0, [3, 1], 9),))
    alone = open_runner(llama, "torch", EngineConfig(dtype="f32", kv_cache_memory=2**20))
    with ranks(llama, 2, by=PIPELINE, block_size=32) as runner:
        np.testing.assert_allclose(runner.run(step), alone.run(step), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(runner.embed(step), alone.embed(step), rtol=1e-4, atol=1e-4)


def test_a_step_is_cut_by_tokens_and_keeps_the_order_of_its_logits():
    rows = (Row((1, 2, 3, 4, 5), 0, (7,), 3), Row((6,), 9, (8, 9), 1), Row((7, 8), 0, (5,), 0))
    found = list(micro_batches(Step(rows, ((1, 2),)), 4))
    assert found == [
        Step((Row((1, 2, 3, 4), 0, (7,), 2),), ((1, 2),)),
        Step((Row((5,), 4, (7,), 1), Row((6,), 9, (8, 9), 1), Row((7, 8), 0, (5,), 0))),
    ]


@pytest.mark.parametrize(("num_threads", "expected"), [(None, False), (10_000, False), (1, True)])
def test_stages_overlap_where_the_threads_of_all_have_a_core(monkeypatch, num_threads, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    config = EngineConfig(pipeline_parallel=2, num_threads=num_threads)
    assert stages.has_dedicated_cores(config, 2) is expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "runtime",
    [
        "torch",
        pytest.param("openvino", marks=pytest.mark.long),  # its processes: test_grid
    ],
)
def test_processes_answer_a_crowd_as_the_reference_does(llama, runtime):
    """With pieces of prompts, shared prefixes and speculation; a step that is refused ends
    nothing."""
    common = checkpoints.prompts(1, seed=1, longest=60)[0] * 3
    prompts = [list(common[:70] + tail) for tail in checkpoints.prompts(4, seed=2, longest=60)]
    options = {"max_num_batched_tokens": 48, "max_num_seqs": 4, "kv_cache_memory": 4 << 20}
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    with LLM(llama, runtime, pipeline_parallel=2, dtype="f32", **options) as llm:
        runner = llm._engine.runner
        with pytest.raises(ServingError, match="has 0 blocks"):
            runner.run(Step((Row((5,), 0, (), 1),)))
        answers = llm.generate(prompts, params)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.outputs[0].token_ids == checkpoints.greedy(llama, tuple(prompt), 20)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({PIPELINE: 4}, "pipeline_parallel is 4, expected at most 3"),
        ({PIPELINE: 2, "stage_layers": "1:2:3"}, "stage_layers is '1:2:3', expected pipeline_par"),
        ({PIPELINE: 2, "stage_layers": "1:²"}, "stage_layers is '1:²', expected pipeline_parallel"),
        ({PIPELINE: 2, "max_loras": 1}, "pipeline_parallel is 2, but LoRA adapters are not loaded"),
        ({"tensor_parallel": 2, "max_loras": 1}, "tensor_parallel is 2, but LoRA adapters"),
    ],
)
def test_options_that_openvino_ranks_do_not_support_raise_an_error(llama, options, problem):
    with pytest.raises(StartError, match=problem):
        LLM(llama, "openvino", dtype="f32", **options)


def test_a_stage_that_fails_before_sending_ends_all_ranks(llama):
    """Else the others would wait for it."""
    with ranks(llama, 2, by=PIPELINE) as runner:
        last = runner.runners[1]
        step = Step((Row((5,), 0, (1,), 1),))
        runner.run(step)
        last._stage.close()
        links = runner._links[1]
        links.begin(2)
        runner._links[0].begin(2)
        failing = runner._threads[1].submit(last.run, step)
        runner._threads[0].submit(runner.runners[0].run, step)
        with pytest.raises(ServingError, match="the runner is closed"):
            failing.result(PATIENCE)
        assert links.has_exchanged
        links.close()
