"""The complete engine on real runtimes and tiny models, with a cache that is too small.

Answers to concurrent requests are those of the reference to each prompt alone.
"""

import pytest

from mindspore_serving.llm import LLM, SamplingParams
from tests.llm import checkpoints
from tests.llm.running import check_crowd, require

NUM_NEW = {"openvino": 20, "torch": 20, "native": 20, "mindspore": 8}  # the last: op by op


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return checkpoints.build("llama", tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("num_speculative_tokens", [0, 3])
@pytest.mark.parametrize(
    "runtime",
    [
        "openvino",
        pytest.param("torch", marks=pytest.mark.torch),
        pytest.param("native", marks=pytest.mark.torch),
        pytest.param("mindspore", marks=pytest.mark.mindspore),
    ],
)
def test_concurrent_requests_match_the_reference(directory, runtime, num_speculative_tokens):
    require(runtime)
    options = {"dtype": "f32", "kv_cache_dtype": "f32", "block_size": 32}
    options["num_speculative_tokens"] = num_speculative_tokens
    check_crowd(directory, runtime, count=NUM_NEW[runtime], **options)


@pytest.mark.torch
def test_draft_tokens_are_accepted_in_16_bits(directory):
    """By default, of any token that came before."""
    options = {"dtype": "bf16", "adaptive_speculation": False, "min_ngram": 1}
    params = SamplingParams(temperature=0.0, max_tokens=NUM_NEW["torch"], ignore_eos=True)
    with LLM(directory, "torch", kv_cache_memory=1 << 20, **options) as llm:
        llm.generate([list(range(3, checkpoints.VOCAB))], params)
        assert llm.stats().num_draft_tokens > 0
