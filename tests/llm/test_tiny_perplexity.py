"""What rounding costs a trained model: its perplexity on text that it has not seen."""

import math
from pathlib import Path

import pytest

pytest.importorskip("openvino")

from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.quantize import quantize

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny_llm"
MODEL = EXAMPLE / "model"
WINDOW, NUM_WINDOWS = 512, 5


def windows(llm):
    ids = llm.tokenizer.encode((EXAMPLE / "held_out.txt").read_text("utf-8"))
    assert len(ids) >= WINDOW * NUM_WINDOWS
    return [ids[WINDOW * place : WINDOW * (place + 1)] for place in range(NUM_WINDOWS)]


def perplexity(directory, **options):
    """Of all tokens but the first of each window."""
    with LLM(directory, dtype="f32", max_num_seqs=4, kv_cache_memory=2**24, **options) as llm:
        params = SamplingParams(max_tokens=1, prompt_logprobs=0)
        answers = llm.generate(windows(llm), params, use_tqdm=False)
    scores = [own.logprob for one in answers for own, *_ in one.prompt_logprobs[1:]]
    assert len(scores) == (WINDOW - 1) * NUM_WINDOWS
    return math.exp(-sum(scores) / len(scores))


@pytest.fixture(scope="module")
def as_trained():
    return perplexity(MODEL)


@pytest.mark.torch
def test_the_perplexity_is_that_which_transformers_computes():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    with LLM(MODEL, kv_cache_memory=2**24) as llm:
        rows = torch.tensor(windows(llm))
    model = transformers.LlamaForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    with torch.no_grad():
        expected = math.exp(model(input_ids=rows, labels=rows).loss.item())
    assert perplexity(MODEL, kv_cache_dtype="f32") == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("mode", "most"), [("int8", 1.01), ("int4", 1.05)])
def test_rounded_weights_cost_little(as_trained, tmp_path, mode, most):
    quantize(MODEL, tmp_path / mode, mode)
    assert 0.99 < perplexity(tmp_path / mode) / as_trained < most


@pytest.mark.parametrize("dtype", ["f16", "bf16", "u8"])
def test_rounded_activations_cost_little(tmp_path, dtype):
    """Of the same int8 weights: rounded in the native runtime, and not in OpenVINO's float32."""
    pytest.importorskip("llvmlite")
    quantize(MODEL, tmp_path / "int8", "int8")
    exact = perplexity(tmp_path / "int8")
    rounded = perplexity(tmp_path / "int8", runtime="native", kv_cache_dtype=dtype)
    assert abs(rounded / exact - 1) < 0.005
