"""Beam search against an exhaustive search, and against transformers on a model."""

from itertools import product

import numpy as np
import pytest
import torch
import transformers

from mindspore_serving.core.sampling_params import TokenLogprob
from mindspore_serving.errors import InvalidField, InvalidInputs
from mindspore_serving.llm import LLM, BeamSearchParams
from mindspore_serving.llm.beam_search import Search, search
from tests.llm import checkpoints

VOCAB, END = 3, 0
PROMPT = [2, 1]


def logprobs_behind(text):
    """A distribution that depends on the whole text."""
    weights = np.random.default_rng([7, *text]).exponential(size=VOCAB)
    return np.log(weights / weights.sum())


def likeliest(texts, count):
    found = []
    for text in texts:
        values = logprobs_behind(text)
        order = np.argsort(-values)[:count]
        found.append([TokenLogprob(int(i), float(values[i]), r) for r, i in enumerate(order)])
    return found


def every_answer(max_tokens, *, ends):
    """Each answer there is, with the sum of its log-probabilities."""
    answers = {}
    for tokens in product(range(VOCAB), repeat=max_tokens):
        length = tokens.index(END) + 1 if ends and END in tokens else max_tokens
        text, total = list(PROMPT), 0.0
        for token in tokens[:length]:
            total += logprobs_behind(text)[token]
            text.append(token)
        answers[tokens[:length]] = total
    return answers


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, -0.5])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_wide_beams_find_the_best_of_all_answers(length_penalty, ignore_eos):
    params = BeamSearchParams(
        beam_width=32, max_tokens=3, ignore_eos=ignore_eos, length_penalty=length_penalty
    )
    one = Search(PROMPT, params, (END,))
    search([one], likeliest)
    answers = every_answer(3, ends=not ignore_eos)
    order = sorted(answers, key=lambda tokens: -answers[tokens] / len(tokens) ** length_penalty)
    found = [(tuple(tokens), pytest.approx(total)) for tokens, total in one.best()]
    assert found == [(tokens, answers[tokens]) for tokens in order]


def test_search_ends_once_no_beam_can_become_better():
    """The answer of one token is certain: later ones only lose."""
    calls = []

    def certain(texts, count):
        calls.append(len(texts))
        entries = [TokenLogprob(END, -0.1, 0), TokenLogprob(1, -9.0, 1)]
        return [entries[:count]] * len(texts)

    one = Search(PROMPT, BeamSearchParams(beam_width=1, max_tokens=50), (END,))
    search([one], certain)
    assert one.best() == [([END], -0.1)]
    assert len(calls) == 1


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return checkpoints.build("llama", tmp_path_factory.mktemp("beams"))


def test_beams_of_a_model_are_those_of_transformers(directory):
    prompts, width, count = [[5, 9, 33, 7], [11, 2, 60]], 3, 6
    options = {"max_model_len": 64, "block_size": 32, "kv_cache_memory": 2**22, "dtype": "f32"}
    with LLM(directory, "openvino", **options) as llm:
        params = BeamSearchParams(beam_width=width, max_tokens=count, ignore_eos=True)
        found = llm.beam_search(prompts, params)
        for prompt in ([], [1] * 59):
            with pytest.raises(InvalidInputs, match="tokens, expected 1 to 64 less 6"):
                llm.beam_search([prompt], params)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    for prompt, output in zip(prompts, found, strict=True):
        expected = model.generate(
            torch.tensor([prompt]),
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=count,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        assert [list(each.tokens) for each in output.sequences] == expected.sequences.tolist()
        totals = [each.cum_logprob / count for each in output.sequences]
        np.testing.assert_allclose(totals, expected.sequences_scores.numpy(), atol=1e-4)


@pytest.mark.parametrize(
    "params", [{"beam_width": 0}, {"beam_width": 33}, {"max_tokens": 0}, {"length_penalty": 11.0}]
)
def test_parameters_out_of_range_are_refused(params):
    with pytest.raises(InvalidField, match=next(iter(params))):
        BeamSearchParams(**params)
