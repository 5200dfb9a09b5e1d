"""The whole engine on real runtimes and real (tiny) models: what the reference answers to each
prompt alone is what the engine answers in a crowd, with a cache that is too small for it."""

import pytest

from mindspore_serving.llm import LLM, FinishReason, SamplingParams
from tests.llm import checkpoints

NUM_NEW = {"openvino": 20, "torch": 20, "mindspore": 8}  # the last computes op by op, slowly


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return checkpoints.build("llama", tmp_path_factory.mktemp("models"))


def crowd():
    """Prompts of which many begin alike, so that blocks are shared."""
    common = checkpoints.prompts(1, seed=1, longest=60)[0] * 3
    tails = checkpoints.prompts(9, seed=2, longest=60)
    return [
        list(common[:70] + tail) if place % 3 else list(tail) for place, tail in enumerate(tails)
    ]


@pytest.mark.parametrize("num_speculative_tokens", [0, 3])
@pytest.mark.parametrize(
    "runtime",
    [
        "openvino",
        pytest.param("torch", marks=pytest.mark.torch),
        pytest.param("mindspore", marks=pytest.mark.mindspore),
    ],
)
def test_a_crowd_is_answered_as_the_reference_answers_each_alone(
    directory, runtime, num_speculative_tokens
):
    pytest.importorskip(runtime)
    num_new = NUM_NEW[runtime]
    options = {
        "dtype": "f32",
        "kv_cache_dtype": "f32",
        "max_num_seqs": 8,
        "max_num_batched_tokens": 48,
        "max_model_len": 160,
        "block_size": 32,
        "kv_cache_memory": 10 * 32 * 3 * 2 * 2 * 16 * 4,  # 10 blocks of 3 layers of 2 heads of 16
        "num_speculative_tokens": num_speculative_tokens,
        "adaptive_speculation": False,
        "min_ngram": 1,
    }
    params = SamplingParams(temperature=0.0, max_tokens=num_new, ignore_eos=True, n=2)
    prompts = crowd()
    with LLM(directory, runtime, **options) as llm:
        answers = llm.generate(prompts, params)
        stats = llm.stats()
    assert stats.num_blocks == 10
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = checkpoints.greedy(directory, tuple(prompt), num_new)
        for output in answer.outputs:
            assert output.finish_reason is FinishReason.LENGTH
            assert output.token_ids == expected
    assert stats.num_preemptions > 0
    assert stats.num_cache_hits > 0
    assert (stats.num_guesses > 0) == (num_speculative_tokens > 0)


@pytest.mark.torch
def test_tokens_are_guessed_in_16_bits_too(directory):
    """By default, of any token that came before."""
    options = {"dtype": "bf16", "adaptive_speculation": False, "min_ngram": 1}
    params = SamplingParams(temperature=0.0, max_tokens=NUM_NEW["torch"], ignore_eos=True)
    with LLM(directory, "torch", kv_cache_memory=1 << 20, **options) as llm:
        llm.generate([list(range(3, checkpoints.VOCAB))], params)
        assert llm.stats().num_guesses > 0
