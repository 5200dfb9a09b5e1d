"""Models with an encoder and a decoder against transformers, alone and with other requests."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("openvino")

from mindspore_serving.core.llm_messages import BACKGROUND
from mindspore_serving.core.sampling_params import FinishReason, SamplingParams
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm import LLM
from mindspore_serving.llm.beam_search import BeamSearchParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.loader import open_ours
from mindspore_serving.llm.runtimes.openvino.processor import capabilities
from tests.llm import translators
from tests.llm.translators import END, FAMILIES, LONGEST, PAD, VOCAB

pytestmark = pytest.mark.torch
EXACT = {"dtype": "f32", "max_num_seqs": 4}
LENGTHS = (5, 40, 1, 17, 90, 12, 64, 33)
COUNT = 70  # tokens of an answer, more than the tables have cells at first


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("translators")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, place):
    """A family: its directory, and its model by transformers in float64."""
    directory = translators.build(request.param, place)
    kind = getattr(transformers, FAMILIES[request.param][0])
    model = kind.from_pretrained(directory, dtype=torch.float64).eval()
    return SimpleNamespace(name=request.param, directory=directory, model=model)


@pytest.fixture(scope="module")
def bart(place):
    return translators.build("bart", place / "other")


def prompts(seed=0):
    random = np.random.default_rng(seed)
    return [[*random.integers(7, VOCAB, length - 1).tolist(), END] for length in LENGTHS]


def engine_of(directory, **options):
    return open_ours(directory, "openvino", EngineConfig(**{**EXACT, **options}))[1]


def greedy(count=COUNT, **options):
    options = {"temperature": 0.0, "max_tokens": count, "ignore_eos": True, **options}
    return SamplingParams(**options)


def run(engine, requests):
    """Return the outputs of each request; `requests` are pairs of a prompt and its parameters."""
    outputs = {str(number): [] for number in range(len(requests))}
    for number, (prompt, params) in enumerate(requests):
        engine.add(str(number), prompt, params)
    while engine.has_work:
        for name, generated in engine.step():
            outputs[name].append(generated)
    return list(outputs.values())


def tokens_of(outputs):
    return [token for generated in outputs for token in generated.token_ids]


def logprobs_of(outputs):
    """Return the log-probabilities of the tokens that were chosen."""
    return np.array([entries[0].logprob for each in outputs for entries in each.logprobs])


def scores_of(model, prompt, start, answer):
    """Return transformers' log-probabilities behind each token: [len(answer), vocabulary]."""
    with torch.inference_mode():
        inputs = {"input_ids": torch.tensor([prompt]), "attention_mask": torch.ones(1, len(prompt))}
        decoder = torch.tensor([[*start, *answer[:-1]]])
        logits = model(**inputs, decoder_input_ids=decoder, use_cache=False).logits[0]
    return logits[len(start) - 1 :].log_softmax(-1).numpy()


def test_batches_of_all_lengths_equal_transformers(family):
    engine = engine_of(family.directory, max_num_batched_tokens=100)
    start = list(engine.runner.answer_start)
    answers = run(engine, [(prompt, greedy(logprobs=1)) for prompt in prompts()])
    engine.close()
    never = [PAD] if "bad_words_ids" in FAMILIES[family.name][1] else []
    for prompt, outputs in zip(prompts(), answers, strict=True):
        answer = tokens_of(outputs)
        scores = scores_of(family.model, prompt, start, answer)
        scores[:, never] = -np.inf
        scores -= np.log(np.exp(scores).sum(-1, keepdims=True))
        assert answer == scores.argmax(-1).tolist()
        assert np.abs(logprobs_of(outputs) - scores.max(-1)).max() < 1e-4


def test_answers_are_those_of_generate(family):
    engine = engine_of(family.directory)
    prompt, length = prompts()[3], len(engine.runner.answer_start) + 20
    (outputs,) = run(engine, [(prompt, greedy(20, ignore_eos=False))])
    engine.close()
    ids = torch.tensor([prompt])
    expected = family.model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=1,
        max_length=length, use_cache=False,
    )[0].tolist()  # fmt: skip
    assert [*engine.runner.answer_start, *tokens_of(outputs)] == expected


def test_several_answers_to_a_prompt_continue_apart(bart):
    engine = engine_of(bart)
    params = greedy(30, temperature=1.0, n=3, seed=4, logprobs=0)
    (outputs,) = run(engine, [(prompts()[1], params)])
    apart = [[each for each in outputs if each.index == index] for index in range(3)]
    texts = [tokens_of(each) for each in apart]
    assert len({tuple(text) for text in texts}) == 3
    prompt, start = prompts()[1], list(engine.runner.answer_start)
    engine.close()
    model = transformers.BartForConditionalGeneration.from_pretrained(bart).eval()
    for text, generated in zip(texts, apart, strict=True):
        expected = scores_of(model, prompt, start, text)[np.arange(len(text)), text]
        assert np.abs(logprobs_of(generated) - expected).max() < 1e-4


def test_a_preempted_answer_continues(bart):
    engine = engine_of(bart, max_num_seqs=1)
    alone = [tokens_of(each) for each in run(engine, [(p, greedy(20)) for p in prompts()[:2]])]
    engine.add("background", prompts()[0], greedy(20), priority=BACKGROUND)
    outputs = {"background": [], "foreground": []}
    for number in range(200):
        if number == 7:
            engine.add("foreground", prompts()[1], greedy(20))
        for name, generated in engine.step():
            outputs[name] += generated.token_ids
    assert engine.stats().num_preemptions == 1
    assert [outputs["background"], outputs["foreground"]] == alone
    engine.close()


def test_a_cancelled_request_leaves_the_rest_unchanged(bart):
    engine = engine_of(bart)
    expected = [tokens_of(each) for each in run(engine, [(p, greedy(40)) for p in prompts()[:4]])]
    outputs = {name: [] for name in "0123"}
    for name, prompt in zip(outputs, prompts(), strict=False):
        engine.add(name, prompt, greedy(40))
    for number in range(200):
        if number in (5, 9):
            engine.abort("0" if number == 5 else "2")
        for name, generated in engine.step():
            outputs[name] += generated.token_ids
    assert [outputs["1"], outputs["3"]] == [expected[1], expected[3]]
    assert 0 < len(outputs["0"]) < 40
    assert outputs["0"] == expected[0][: len(outputs["0"])]
    assert engine.stats().num_free_blocks == engine.num_blocks
    engine.close()


def test_penalties_count_the_answer_alone(bart):
    engine = engine_of(bart)
    params = greedy(12, repetition_penalty=1.7)
    prompt = prompts()[4]
    (outputs,) = run(engine, [(prompt, params)])
    engine.close()
    model = transformers.BartForConditionalGeneration.from_pretrained(bart).eval()
    answer = tokens_of(outputs)
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        decoder = torch.tensor([[*engine.runner.answer_start, *answer[:-1]]])
        logits = model(input_ids=ids, decoder_input_ids=decoder).logits[0][1:].numpy()
    for place, row in enumerate(logits):
        seen = answer[:place]
        row[seen] = np.where(row[seen] > 0, row[seen] / 1.7, row[seen] * 1.7)[...]
        assert answer[place] == row.argmax()


def test_memory_bounds_the_sequences(bart):
    per_block = 2 * 4 * 3 * 32 * 2 * LONGEST  # keys and values, f32, layers, width, cells
    engine = engine_of(bart, kv_cache_memory=2 * per_block)
    assert engine.num_blocks == 2
    answers = run(engine, [(prompt, greedy(100)) for prompt in prompts()])
    assert [len(tokens_of(each)) for each in answers] == [100] * len(LENGTHS)
    assert engine.runner.num_bytes <= 2 * per_block
    engine.close()


def test_limits_are_those_of_each_side(bart):
    engine = engine_of(bart)
    assert (engine.max_prompt_len, engine.max_model_len) == (LONGEST, 2 * LONGEST)
    (outputs,) = run(engine, [([8] * LONGEST, greedy(1000))])
    assert len(tokens_of(outputs)) == LONGEST - len(engine.runner.answer_start)
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    with pytest.raises(InvalidInputs, match=f"{LONGEST + 1} tokens.*at most {LONGEST}"):
        engine.add("long", [8] * (LONGEST + 1), greedy(1))
    with pytest.raises(InvalidInputs, match="prompt_logprobs is set, expected none: an encoder"):
        engine.add("scored", [8], greedy(1, prompt_logprobs=1))
    engine.close()


def test_a_longer_context_of_relative_positions(place):
    directory = translators.build("t5", place / "long")
    engine = engine_of(directory, max_model_len=400)
    assert (engine.max_prompt_len, engine.max_model_len) == (400, 400)
    (outputs,) = run(engine, [([8] * 350, greedy(1000))])
    assert len(tokens_of(outputs)) == 50
    engine.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_speculative_tokens": 4}, "num_speculative_tokens is an option of decoders"),
        ({"adapters": {"a": "b"}}, "adapters is an option of decoders"),
        ({"tensor_parallel": 2}, "tensor_parallel is an option of decoders"),
        ({"runtime": "torch"}, "expected one of openvino for a model with an encoder"),
    ],
)
def test_options_of_decoders_are_refused(bart, options, text):
    runtime = options.pop("runtime", "openvino")
    with pytest.raises(StartError, match=text):
        open_ours(bart, runtime, EngineConfig(**options))


def test_texts_are_translated_offline(bart):
    with LLM(bart, dtype="f32") as llm:
        params = SamplingParams(max_tokens=8, temperature=0.0)
        answers = llm.generate(["hello, you!", "bye"], params, use_tqdm=False)
        with pytest.raises(InvalidInputs, match="beam search follows prompts of decoders"):
            llm.beam_search("bye", BeamSearchParams())
    assert [len(answer.prompt_token_ids) for answer in answers] == [13, 5]  # with </s>
    assert not answers[0].outputs[0].text.startswith(" ")


def test_texts_are_the_likeliest_by_default(bart):
    opened, engine = open_ours(bart, "openvino", EngineConfig(**EXACT))
    engine.close()
    card = opened.card()
    assert dict(card.sampling)["temperature"] == 0.0
    assert (card.max_prompt_len, card.can_generate, card.can_embed) == (LONGEST, True, False)


def test_bfloat16_computes(bart):
    if "BF16" not in capabilities():
        pytest.skip("the processor has no bfloat16")
    engine = engine_of(bart, dtype="bf16")
    answers = run(engine, [(prompt, greedy(10, logprobs=1)) for prompt in prompts()])
    engine.close()
    model = transformers.BartForConditionalGeneration.from_pretrained(bart).eval()
    for prompt, outputs in zip(prompts(), answers, strict=True):
        scores = scores_of(model, prompt, [END, translators.BEGIN], tokens_of(outputs))
        assert np.abs(logprobs_of(outputs) - scores.max(-1)).mean() < 0.3


def test_int8_weights_compute(bart):
    engine = engine_of(bart, quantization="int8")
    answers = run(engine, [(prompt, greedy(10)) for prompt in prompts()])
    assert [len(tokens_of(each)) for each in answers] == [10] * len(LENGTHS)
    engine.close()
