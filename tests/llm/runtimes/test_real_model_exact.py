"""The real model, against transformers on the same file, dequantised to float32."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.initialization import no_init_weights
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from mindspore_serving.llm import LLM, SamplingParams
from tests.llm.real_model import real_model

pytestmark = [pytest.mark.torch, pytest.mark.slow]
COUNT = 16  # greedy tokens that are compared
SUBJECTS = ("the sea", "a good friend", "the moon", "bread", "music")
PROMPTS = [f"{start} {subject}" for subject in SUBJECTS for start in (
    "Once upon a time there was", "The most important thing about", "In the year 2050,",
    "A short poem about",
)]  # fmt: skip
TEXT = (
    "The city lies on both banks of a wide river, a few kilometres above the point where it meets "
    "the sea. Its oldest part, with to_f16 streets and a stone bridge of nine arches, was built by "
    "merchants who traded in salt, wool and timber. In the nineteenth century a railway was laid "
    "along the shore, and with it came factories, schools and a small university, whose library "
    "still holds many thousands of letters from that time."
)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    exact = {"dtype": "f32", "kv_cache_dtype": "f32", "kv_cache_memory": 128 << 20}
    with LLM(real_model(), num_speculative_tokens=0, **exact) as found:
        yield found


CONFIG = transformers.LlamaConfig(
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    vocab_size=49152,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    tie_word_embeddings=True,
)


@pytest.fixture(scope="module")
def reference() -> Any:
    with no_init_weights():
        model = transformers.LlamaForCausalLM(CONFIG).eval()
    with pytest.MonkeyPatch.context() as patch:  # or it makes the same map for each tensor
        patch.setattr(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map))
        found = load_gguf_checkpoint(str(real_model()), return_tensors=True, model_to_load=model)
    assert model.load_state_dict(found["tensors"], strict=False).missing_keys == ["lm_head.weight"]
    model.tie_weights()
    return model


def hidden_states(model: Any, texts: list[list[int]]) -> torch.Tensor:
    """[texts, longest, hidden size]; what is put behind a shorter text changes nothing in it."""
    longest = max(map(len, texts))
    with torch.no_grad():
        return model.model(torch.tensor([ids + [0] * (longest - len(ids)) for ids in texts]))[0]


def test_greedy_tokens_of_twenty_prompts_are_equal(llm: LLM, reference: Any) -> None:
    params = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
    answers = llm.generate(PROMPTS, params, use_tqdm=False)
    prompts = [list(answer.prompt_token_ids) for answer in answers]
    found = [list(answer.outputs[0].token_ids) for answer in answers]
    states = hidden_states(reference, [a + b for a, b in zip(prompts, found, strict=True)])
    for prompt, tokens, state in zip(prompts, found, states, strict=True):
        begin = len(prompt) - 1
        scores = state[begin : begin + COUNT] @ reference.lm_head.weight.T
        chosen = scores[torch.arange(COUNT), torch.tensor(tokens)]
        # Where two are as close as the rounding of sums, either is right.
        assert (scores.max(-1).values - chosen).max() < 1e-3, llm.tokenizer.decode(prompt)


def test_log_probabilities_and_so_perplexity_are_equal(llm: LLM, reference: Any) -> None:
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    (answer,) = llm.generate(TEXT, params, use_tqdm=False)
    ids = list(answer.prompt_token_ids)
    (state,) = hidden_states(reference, [ids])
    expected = torch.log_softmax(state[:-1] @ reference.lm_head.weight.T, -1)
    expected = expected[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].detach().numpy()
    found = [own[0].logprob for own in answer.prompt_logprobs[1:]]
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert 5 < np.exp(-expected.mean()) < 50, "this is a text, for this model"


@pytest.mark.long
def test_text_is_the_same_with_and_without_draft_tokens(llm: LLM) -> None:
    """Many are right where it repeats, and many wrong where it is a story."""
    prompts = [f"{TEXT}\n\nOnce more:\n\n{TEXT[:40]}", PROMPTS[0], "[[1, 2, 3], [1, 2, 3], [1,"]
    greedy = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
    params = [*[greedy] * 3, *[replace(greedy, temperature=0.8, seed=seed) for seed in range(3)]]
    expected = llm.generate(prompts * 2, params, use_tqdm=False)
    exact = {"dtype": "f32", "kv_cache_dtype": "f32", "kv_cache_memory": 128 << 20}
    guesses = {"num_speculative_tokens": 7, "adaptive_speculation": False, "min_ngram": 1}
    with LLM(real_model(), **exact, **guesses) as guessing:
        found = guessing.generate(prompts * 2, params, use_tqdm=False)
        stats = guessing.stats()
    same = [
        one.outputs[0].token_ids == other.outputs[0].token_ids
        for one, other in zip(found, expected, strict=True)
    ]
    assert all(same[:3])
    # Logits of steps with more rows differ in their last bits, and one draw in some thousands with
    # them.
    assert sum(same[3:]) >= 2
    assert stats.num_accepted_tokens > 20
    assert stats.num_draft_tokens > stats.num_accepted_tokens + 20
