"""What a model over ranks generates is, token for token, what it generates on one."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm import LLM, FinishReason, SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel import exchange, processes
from mindspore_serving.llm.runtimes import open_encoder, open_runner
from mindspore_serving.llm.step import Row, Step
from tests.llm import checkpoints
from tests.llm.rank_threads import ranks
from tests.llm.running import generate, generate_staggered, texts

pytestmark = pytest.mark.torch
COUNT = 9  # more than a block of torch
CUT = [
    "llama", "llama3-tied", "llama-biased", "llama-yarn", "qwen2", "qwen3", "mistral", "phi3",
    "gemma2", "gemma3", "mixtral", "qwen3-moe", "internlm", "internlm2",
    "internlm3", "internlm3-biased", "chatglm2-32k", "telechat2",
    "smollm3", "granite", "exaone4", "hunyuan", "glm4", "granite4",
    "deepseek-v2", "deepseek-v2-lite", "deepseek-v3", "minicpm3", "gpt-oss", "llama4",
    "gpt2", "bloom", "cohere-normed", "olmo2", "phi", "falcon-alibi",
    "qwen2-moe", "glm4-moe", "gemma3n-uneven", "gemma4", "gemma4-large", "gemma4-moe",
]  # fmt: skip
# Cut as gemma2, chatglm2-32k, qwen2, qwen2, mistral, mistral, glm4, internlm, deepseek-v2,
# qwen3-moe, deepseek-v2 and glm4-moe are; then as bloom, gpt2, phi or olmo2.
CUT_ALIKE = [
    "gemma", "chatglm3-32k", "ernie4_5", "seed-oss", "ministral3", "ministral", "glm",
    "pangu-embedded", "pangu-ultra", "granite-moe", "ernie4_5-moe-biased", "dots1",
    "baichuan2-13b", "opt", "starcoder2", "gpt-neox", "gptj", "stablelm-parallel", "cohere2",
    "nemotron", "olmo", "arcee", "olmo3", "olmoe",
]  # fmt: skip
RUNTIMES = pytest.mark.parametrize("runtime", ["torch", "openvino"])


IN_OPENVINO = [
    "llama3-tied", "llama-biased", "phi3", "gemma3", "mixtral", "qwen3-moe", "internlm2",
    "granite4", "gpt-oss", "gpt2", "bloom", "olmo2", "gemma3n-uneven", "gemma4", "gemma4-large",
    "gemma4-moe",
]  # fmt: skip
BOTH = [
    pytest.param(runtime, name, marks=[pytest.mark.long] * (name in CUT_ALIKE))
    for name in CUT + CUT_ALIKE
    for runtime in ("torch", "openvino")[: 1 + (name in IN_OPENVINO)]
]


def build(name, directory):
    """The checkpoint; built once."""
    path = directory / name
    return path if path.exists() else checkpoints.build(name, directory)


@pytest.mark.parametrize(("runtime", "name"), BOTH)
def test_two_ranks_generate_the_tokens_of_the_reference(built, runtime, name):
    path = build(name, built)
    prompts = [(5,), *checkpoints.prompts(2)]
    with ranks(path, 2, runtime) as runner:
        answers = generate(runner, texts(runner, prompts, COUNT), COUNT)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer == checkpoints.likeliest(path, prompt, answer)


@pytest.mark.parametrize(
    ("runtime", "name"),
    [
        ("torch", "llama"), ("torch", "gemma2"), ("torch", "mixtral"), ("torch", "olmo2"),
        ("openvino", "llama"), ("openvino", "mixtral"),
    ],
)  # fmt: skip
def test_four_ranks_that_share_two_key_value_heads_do_so_too(built, runtime, name):
    path = build(name, built)
    prompts = checkpoints.prompts(3)
    with ranks(path, 4, runtime) as runner:
        answers = generate_staggered(runner, texts(runner, prompts, COUNT), COUNT, chunk=7)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer == checkpoints.likeliest(path, prompt, answer)


@RUNTIMES
def test_a_vocabulary_that_the_ranks_do_not_divide(built, monkeypatch, runtime):
    monkeypatch.setattr(checkpoints, "SIZES", checkpoints.SIZES | {"vocab_size": 163})
    path = checkpoints.build("llama", built / f"uneven-{runtime}")
    prompts = [(160, 161, 162, 5), *checkpoints.prompts(2)]
    with ranks(path, 4, runtime) as runner:
        answers = generate(runner, texts(runner, prompts, COUNT), COUNT)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer == checkpoints.likeliest(path, prompt, answer)


@RUNTIMES
def test_logits_are_those_of_a_single_rank_within_rounding(llama, runtime):
    step = Step((Row(checkpoints.prompts(1)[0][:9], 0, [3, 1], 9),))
    alone = open_runner(llama, runtime, EngineConfig(dtype="f32", kv_cache_memory=2**20))
    with ranks(llama, 2, runtime, block_size=32) as runner:
        np.testing.assert_allclose(runner.run(step), alone.run(step), rtol=1e-4, atol=1e-4)


@RUNTIMES
def test_embeddings_are_those_of_a_single_rank_within_rounding(llama, runtime):
    step = Step((Row((5, 6, 7), 0, [2], 1),))
    alone = open_runner(llama, runtime, EngineConfig(dtype="f32", kv_cache_memory=2**20))
    with ranks(llama, 2, runtime, block_size=32) as runner:
        np.testing.assert_allclose(runner.embed(step), alone.embed(step), rtol=1e-4, atol=1e-4)


@RUNTIMES
def test_arrays_larger_than_an_exchange_are_sent_in_pieces(llama, monkeypatch, runtime):
    monkeypatch.setattr(exchange, "PART_BYTES", 1000)
    prompts = checkpoints.prompts(3)
    with ranks(llama, 2, runtime) as runner:
        answers = generate(runner, texts(runner, prompts, COUNT), COUNT)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer == checkpoints.likeliest(llama, prompt, answer)


def test_the_cache_memory_is_that_of_all_ranks_together(llama):
    whole = open_runner(
        llama, "torch", EngineConfig(device="cpu", block_size=8, kv_cache_memory=2**20)
    )
    with ranks(llama, 2, kv_cache_memory=2**20) as runner:
        assert runner.num_blocks == whole.num_blocks


# --- with processes -------------------------------------------------------------------------------


def open_ranks(path: Path, runtime: str = "torch", **options: object) -> LLM:
    return LLM(path, runtime, **{"tensor_parallel": 2, "dtype": "f32"} | options)


@pytest.mark.slow
def test_an_engine_over_ranks_answers_a_crowd_as_the_reference_does(llama):
    """With chunks, shared prefixes, preemption and speculation."""
    common = checkpoints.prompts(1, seed=1, longest=60)[0] * 3
    tails = checkpoints.prompts(9, seed=2, longest=60)
    prompts = [
        list(common[:70] + tail) if place % 3 else list(tail) for place, tail in enumerate(tails)
    ]
    options = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 48,
        "max_model_len": 160,
        "kv_cache_memory": 10 * 32 * 3 * 2 * 2 * 16 * 4,  # 10 blocks of 3 layers of 2 heads of 16
        "num_speculative_tokens": 3,
        "adaptive_speculation": False,
        "min_ngram": 1,
    }
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, n=2)
    with open_ranks(llama, **options) as llm:
        answers = llm.generate(prompts, params)
        stats = llm.stats()
        memory = llm._any_engine().memory
        memory.set_target(0)
        assert memory.release(memory.limit) == stats.num_cache_bytes > 0  # by all ranks
        assert llm.generate(prompts[0], params)[0].outputs == answers[0].outputs
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = checkpoints.greedy(llama, tuple(prompt), 20)
        for output in answer.outputs:
            assert output.finish_reason is FinishReason.LENGTH
            assert output.token_ids == expected
    assert stats.num_blocks == 10
    assert min(stats.num_preemptions, stats.num_cache_hits, stats.num_draft_tokens) > 0


@pytest.mark.slow
def test_a_refused_step_is_refused_by_all_ranks_and_the_next_runs(llama):
    config = EngineConfig(dtype="f32", kv_cache_memory=2**20, tensor_parallel=2)
    runner = open_runner(llama, "openvino", config)
    try:
        with pytest.raises(ServingError, match="has 0 blocks"):
            runner.run(Step((Row((5,), 0, (), 1),)))
        logits = runner.run(Step((Row((5,), 0, (1,), 1),)))
        assert logits.argmax() == checkpoints.logits(llama, (5,))[-1].argmax()
    finally:
        runner.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tensor_parallel": 3}, "expected a divisor of the model's 4 attention heads"),
        ({"quantization": "int8"}, "the torch runtime accepts only none"),
        ({"device": "cuda"}, "sees 0 CUDA devices|needs device"),
    ],
)
def test_options_that_ranks_do_not_support_raise_a_single_error(llama, options, problem):
    with pytest.raises(StartError, match=problem):
        open_ranks(llama, **options)


def test_runtimes_without_ranks_and_encoders_refuse_them(llama):
    config = EngineConfig(tensor_parallel=2)
    with pytest.raises(
        StartError, match="'agents' has no tensor_parallel, expected one of openvino, torch"
    ):
        open_runner(llama, "agents", config)
    with pytest.raises(StartError, match="tensor_parallel is an option of models that generate"):
        open_encoder(llama, "torch", config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "problem"),
    [
        ("says", "rank 1: no room for my part"),
        ("dies", "rank 1: ended by signal SIGKILL"),
        ("leaves", "rank 1: exit status 7"),
        ("other", "rank 1: the rank 1's mindspore_serving in /there has protocol other"),
    ],
)
def test_a_rank_that_cannot_load_raises_a_single_error(llama, monkeypatch, end, problem):
    monkeypatch.setattr(processes, "MODULE", "tests.llm.rank_that_fails")
    monkeypatch.setenv("RANK_END", end)
    with pytest.raises(StartError, match=f"cannot be loaded over ranks: .*{problem}"):
        open_ranks(llama)


@pytest.mark.parametrize("value", [0, 65, 2.0, True])
def test_a_number_of_ranks_that_is_none_is_refused(value):
    with pytest.raises(ServingError, match="tensor_parallel is .*, expected an int of 1 to 64"):
        EngineConfig(tensor_parallel=value)
