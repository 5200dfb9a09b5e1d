"""The real model computes what transformers computes of the same file, dequantised to float32."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes import open_runner
from mindspore_serving.llm.step import Row, Step
from tests.llm.real_model import real_model

pytestmark = [pytest.mark.torch, pytest.mark.slow]
COUNT = 48  # greedy tokens that are compared
SUBJECTS = ("the sea", "a good friend", "the moon", "bread", "music")
PROMPTS = [f"{start} {subject}" for subject in SUBJECTS for start in (
    "Once upon a time there was", "The most important thing about", "In the year 2050,",
    "A short poem about",
)]  # fmt: skip
TEXT = (
    "The city lies on both banks of a wide river, a few kilometres above the point where it meets "
    "the sea. Its oldest part, with narrow streets and a stone bridge of nine arches, was built by "
    "merchants who traded in salt, wool and timber. In the nineteenth century a railway was laid "
    "along the shore, and with it came factories, schools and a small university, whose library "
    "still holds many thousands of letters from that time."
)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(real_model(), dtype="f32", kv_cache_dtype="f32", kv_cache_memory=128 << 20) as found:
        yield found


@pytest.fixture(scope="module")
def reference() -> Any:
    path = real_model()
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    return model


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def test_greedy_tokens_of_twenty_prompts_are_equal(llm: LLM, reference: Any) -> None:
    params = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
    for answer in llm.generate(PROMPTS, params, use_tqdm=False):
        prompt, found = list(answer.prompt_token_ids), list(answer.outputs[0].token_ids)
        scores = logits(reference, prompt + found)[len(prompt) - 1 : -1]
        best, chosen = scores.max(-1).values, scores[torch.arange(COUNT), torch.tensor(found)]
        # Where two are as close as the rounding of sums, either is right.
        assert (best - chosen).max() < 1e-3, answer.prompt


def test_log_probabilities_and_perplexity_are_equal(llm: LLM, reference: Any) -> None:
    ids = llm.tokenizer.encode(TEXT)
    expected = torch.log_softmax(logits(reference, ids)[:-1].double(), -1)
    expected = expected[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].numpy()
    runner = open_runner(
        real_model(),
        "openvino",
        EngineConfig(dtype="f32", kv_cache_dtype="f32", kv_cache_memory=32 << 20),
    )
    blocks = range(-(-len(ids) // runner.block_size))
    found = torch.tensor(np.array(runner.run(Step((Row(ids, 0, blocks, len(ids)),)))))
    runner.close()
    found = torch.log_softmax(found[:-1].double(), -1)
    found = found[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert 1 < np.exp(-expected.mean()) < 25, "the text is a text for this model"
