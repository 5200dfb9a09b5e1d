"""Answers do not depend on concurrent requests.

The matrix kernels of OpenVINO and PyTorch choose the order of their sums by the number of rows, so
logits agree to rounding and not to the bit; tokens differ only where two logits are that close.  A
cache of f16 or u8 rounds more: how much of a prompt is read back from it depends on the other
prompts.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.quantize import quantize

pytest.importorskip("openvino")
pytest.importorskip("torch")

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "tiny_llm"
PIECES = {"max_num_batched_tokens": 16, "max_num_seqs": 8}
ROUNDING = 1e-4  # of log-probabilities; seen were 6e-6


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    """Of 5 to 40 words, from text that the model was not trained on."""
    words = (EXAMPLE / "held_out.txt").read_text().split()
    return [" ".join(words[60 * i : 60 * i + 5 + 3 * i]) for i in range(12)]


def answers(llm: LLM, prompts: list[str], params: list[SamplingParams]) -> tuple[list, list]:
    """Those to each prompt alone, and those to all at once."""
    pairs = zip(prompts, params, strict=True)
    alone = [llm.generate(text, own, use_tqdm=False)[0].outputs[0] for text, own in pairs]
    return alone, [answer.outputs[0] for answer in llm.generate(prompts, params, use_tqdm=False)]


@pytest.mark.parametrize("runtime", ["openvino", "torch", "native"])
def test_answers_are_the_same_alone_and_in_a_batch(runtime, prompts):
    greedy = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, logprobs=0)
    params = [
        greedy if i % 2 else replace(greedy, temperature=1.0, top_k=20, seed=i) for i in range(12)
    ]
    exact = {"dtype": "f32", "kv_cache_dtype": "f32", "kv_cache_memory": 64 << 20}
    with LLM(EXAMPLE / "model", runtime, **exact) as llm:
        alone, batch = answers(llm, prompts, params)
    assert [one.token_ids for one in batch] == [one.token_ids for one in alone]
    assert distance(alone, batch) < ROUNDING


def test_grammars_and_logprobs_of_native_match_torch(prompts):
    """Answers within a grammar, and log-probabilities of prompts that are computed in pieces."""
    exact = {"dtype": "f32", "kv_cache_dtype": "f32", "kv_cache_memory": 64 << 20}
    params = SamplingParams(max_tokens=12, temperature=0, logprobs=2, prompt_logprobs=0)
    found = []
    for runtime in ("torch", "native"):
        with LLM(EXAMPLE / "model", runtime, **exact, **PIECES) as llm:
            grammar = Grammar("regex", "[a-f]{5,9} [0-9]+ [a-z ]+")
            found.append(llm.generate(prompts[:5], params, grammar=grammar, use_tqdm=False))
    for ours, reference in zip(*reversed(found), strict=True):
        (left,), (right,) = ours.outputs, reference.outputs
        assert (left.token_ids, left.text) == (right.token_ids, right.text)
        assert re.match("[a-f]{5,9} [0-9]", left.text)
        assert distance([left], [right]) < ROUNDING
        pairs = zip(ours.prompt_logprobs[1:], reference.prompt_logprobs[1:], strict=True)
        assert max(abs(a[0].logprob - b[0].logprob) for a, b in pairs) < ROUNDING


def test_batched_answers_match_with_quantised_weights_and_cache(prompts, tmp_path):
    quantize(EXAMPLE / "model", tmp_path / "int8", "int8")
    greedy = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, logprobs=0)
    with LLM(tmp_path / "int8", dtype="f32", kv_cache_memory=64 << 20) as llm:
        alone, batch = answers(llm, prompts, [greedy] * 12)
    same = [one for one in zip(alone, batch, strict=True) if one[0].token_ids == one[1].token_ids]
    assert len(same) >= 10
    assert distance(*zip(*same, strict=True)) < 0.02


def distance(ones, others) -> float:
    """The largest between log-probabilities of the same tokens."""
    pairs = zip(ones, others, strict=True)
    logprobs = [pair for a, b in pairs for pair in zip(a.logprobs, b.logprobs, strict=True)]
    return max(abs(left[0].logprob - right[0].logprob) for left, right in logprobs)
