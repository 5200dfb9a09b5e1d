"""Beam search of models with an encoder and a decoder, against `generate` of transformers."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("openvino")

from mindspore_serving.core.llm_messages import BACKGROUND, Grammar
from mindspore_serving.core.sampling_params import FinishReason, SamplingParams
from mindspore_serving.errors import InvalidField, InvalidInputs, StartError
from mindspore_serving.llm import LLM
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.loader import open_ours
from mindspore_serving.llm.runtimes.openvino.seq2seq_slots import SequenceTables
from tests.llm import translators
from tests.llm.runtimes.test_seq2seq import engine_of, prompts, run, tokens_of
from tests.llm.translators import BEGIN, END, FAMILIES, PAD

pytestmark = pytest.mark.torch
SEARCHES = (
    {"num_beams": 1, "no_repeat_ngram_size": 2},
    {"num_beams": 2},
    {"num_beams": 3, "no_repeat_ngram_size": 2, "length_penalty": 2.0, "early_stopping": True},
    {"num_beams": 4, "length_penalty": 0.5},
    {"num_beams": 5, "no_repeat_ngram_size": 3, "length_penalty": -1.0},
)
COUNT = 16


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("searched")


@pytest.fixture(scope="module", params=["bart", "marian", "t5"])
def family(request, place):
    """A family: its directory, and its model by transformers in float64."""
    return open_family(request.param, place)


def open_family(name, place):
    directory = translators.build(name, place)
    kind = getattr(transformers, FAMILIES[name][0])
    model = kind.from_pretrained(directory, dtype=torch.float64).eval()
    return SimpleNamespace(directory=directory, model=model)


@pytest.fixture(scope="module")
def bart(place):
    return open_family("bart", place / "other")


@pytest.fixture(scope="module")
def engine(bart):
    engine = engine_of(bart.directory, max_num_seqs=6)
    yield engine
    engine.close()


def searched(**options):
    return SamplingParams(**{"temperature": 0.0, "max_tokens": COUNT, **options})


def generate(model, inputs, **options):
    """The answers of transformers to prompts of different lengths, each to its end."""
    longest = max(map(len, inputs))
    ids = torch.tensor([[*prompt, *[PAD] * (longest - len(prompt))] for prompt in inputs])
    shown = torch.tensor([[1] * len(prompt) + [0] * (longest - len(prompt)) for prompt in inputs])
    options = {"do_sample": False, "use_cache": False, **options}
    answers = model.generate(ids, attention_mask=shown, **options).tolist()
    return [
        answer[: answer.index(END, 1) + 1] if END in answer[1:] else answer for answer in answers
    ]


def test_answers_of_a_search_are_those_of_transformers(family):
    engine = engine_of(family.directory, max_num_seqs=12)
    start = list(engine.runner.answer_start)
    requests = [(prompt, searched(**fields)) for fields in SEARCHES for prompt in prompts()[:4]]
    answers = [[*start, *tokens_of(each)] for each in run(engine, requests)]
    engine.close()
    length = len(start) + COUNT
    expected = [
        answer
        for fields in SEARCHES
        for answer in generate(family.model, prompts()[:4], max_length=length, **fields)
    ]
    assert answers == expected
    assert len({tuple(answer) for answer in answers}) > len(prompts()[:4])


def test_the_best_answers_come_in_order_with_their_log_probabilities(engine, bart):
    params = searched(num_beams=4, n=3, logprobs=2, length_penalty=0.0)
    (outputs,) = run(engine, [(prompts()[1], params)])
    assert [output.index for output in outputs] == [0, 1, 2]
    answers = [list(output.token_ids) for output in outputs]
    length = len(engine.runner.answer_start) + COUNT
    options = {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.0}
    expected = generate(bart.model, [prompts()[1]], max_length=length, **options)
    assert [[*engine.runner.answer_start, *answer] for answer in answers] == expected
    sums = [sum(entries[0].logprob for entries in output.logprobs) for output in outputs]
    assert sums == sorted(sums, reverse=True)
    assert all(len(entries) == 3 for output in outputs for entries in output.logprobs)


def test_searches_share_steps_with_answers_that_are_not_searched(engine):
    plain = searched(ignore_eos=True)
    alone = [tokens_of(each) for each in run(engine, [(prompt, plain) for prompt in prompts()[:3]])]
    (best,) = run(engine, [(prompts()[3], searched(num_beams=3))])
    mixed = [(prompt, plain) for prompt in prompts()[:3]]
    mixed.insert(1, (prompts()[3], searched(num_beams=3)))
    together = [tokens_of(each) for each in run(engine, mixed)]
    assert together == [alone[0], tokens_of(best), *alone[1:]]


def test_beams_have_rows_of_the_table_and_share_the_prompt(engine):
    run(engine, [(prompts()[4], searched(num_beams=6))])
    tables = engine.runner._slots
    ((_, slot),) = [*tables._by_block.items()]
    assert (len(set(slot.rows)), tables.answers.num_rows) == (6, 6)
    assert len(slot.blocks) == 6
    assert engine.stats().num_free_blocks == engine.num_blocks


def test_rows_follow_their_parents():
    tables = SequenceTables("f32", 1, 1, 1)
    slot = tables.find([0, 1, 2], is_new=True)
    slot.num_decoded = 2
    tables.fit(num_decoded=2)
    tables.answers.write(0, slot.rows[0], 0, np.array([[[1.0], [2.0]]]))
    tables.follow(slot, [0, 0, 0])
    for number, row in enumerate(slot.rows):
        tables.answers.write(0, row, 1, np.array([[[float(number)]]]))
    tables.follow(slot, [2, 1, 2])
    values = np.array(tables.answers.tensor(0, 0, 3).data)[slot.rows, 0, :2, 0]
    assert values.tolist() == [[1, 2], [1, 1], [1, 2]]
    tables.follow(slot, [1])
    assert np.array(tables.answers.tensor(0, 0, 3).data)[slot.rows[0], 0, :2, 0].tolist() == [1, 1]


def test_a_cancelled_search_frees_its_blocks_and_answers_for_all_of_n(engine):
    engine.add("gone", prompts()[0], searched(num_beams=4, n=2, ignore_eos=True))
    outputs = [engine.step() for _ in range(5)]
    assert not any(outputs)
    assert engine.stats().num_free_blocks == 2
    engine.abort("gone")
    ended = engine.step()
    assert [generated.finish_reason for _, generated in ended] == [FinishReason.ABORT] * 2
    assert engine.stats().num_free_blocks == engine.num_blocks
    assert not engine.has_work


def test_a_preempted_search_begins_again(engine):
    params = searched(num_beams=5, ignore_eos=True)
    (alone,) = run(engine, [(prompts()[1], params)])
    engine.add("background", prompts()[1], params, priority=BACKGROUND)
    outputs = {"background": [], "foreground": []}
    count = engine.stats().num_preemptions
    for number in range(200):
        if number == 7:
            engine.add("foreground", prompts()[2], searched(num_beams=3))
        for name, generated in engine.step():
            outputs[name] += generated.token_ids
    assert engine.stats().num_preemptions == count + 1
    assert outputs["background"] == tokens_of(alone)
    assert outputs["foreground"]


def test_stop_tokens_end_beams_and_the_last_token_says_length(engine):
    (outputs,) = run(engine, [(prompts()[1], searched(num_beams=3, ignore_eos=True))])
    assert (outputs[0].finish_reason, len(tokens_of(outputs))) == (FinishReason.LENGTH, COUNT)
    stop = outputs[0].token_ids[3]
    params = searched(num_beams=3, ignore_eos=True, stop_token_ids=[stop])
    (outputs,) = run(engine, [(prompts()[1], params)])
    assert outputs[0].token_ids[-1] == stop
    assert outputs[0].finish_reason is FinishReason.STOP


def test_searches_that_cannot_run_are_refused(engine):
    with pytest.raises(InvalidField, match=r"num_beams is 7, expected at most 6: so many answers"):
        engine.add("wide", [8], searched(num_beams=7))
    with pytest.raises(InvalidField, match="num_beams is 2, expected temperature=0 with it"):
        SamplingParams(num_beams=2)
    with pytest.raises(InvalidField, match="n is 3, expected at most num_beams=2"):
        searched(num_beams=2, n=3)


@pytest.fixture(scope="module")
def recommending(place):
    """BART whose generation_config.json recommends a search."""
    family = open_family("bart", place / "recommending")
    file = family.directory / "generation_config.json"
    settings = json.loads(file.read_text()) | {
        "num_beams": 3, "length_penalty": 0.7, "early_stopping": True, "min_length": 8,
        "max_length": 14, "no_repeat_ngram_size": 2, "forced_eos_token_id": END,
        "forced_bos_token_id": BEGIN,
        "bad_words_ids": [[PAD], [20, 21]], "suppress_tokens": [9],
    }  # fmt: skip
    file.write_text(json.dumps(settings))
    kind = transformers.BartForConditionalGeneration
    family.model = kind.from_pretrained(family.directory, dtype=torch.float64).eval()
    return family


def test_the_search_of_generation_config_is_followed(recommending):
    with LLM(recommending.directory, dtype="f32", max_num_seqs=4) as llm:
        answers = llm.generate(prompts()[:4], use_tqdm=False)
        short = llm.generate(prompts()[1], searched(max_tokens=5), use_tqdm=False)
        with pytest.raises(InvalidInputs, match="num_beams is 3, expected 1 with a grammar"):
            llm.generate("a", use_tqdm=False, grammar=Grammar("regex", "a"))
    expected = generate(recommending.model, prompts()[:4])
    searched_answers = [[END, BEGIN, *answer.outputs[0].token_ids] for answer in answers]
    assert searched_answers == expected
    lengths = [(len(answer), answer[-1] == END) for answer in searched_answers]
    assert all(8 <= length <= 14 and ends for length, ends in lengths)
    reasons = [answer.outputs[0].finish_reason for answer in answers]
    full = [FinishReason.LENGTH if length == 14 else FinishReason.STOP for length, _ in lengths]
    assert reasons == full
    assert short[0].outputs[0].token_ids[-1] == END


def test_the_operator_chooses_the_number_of_beams(recommending):
    opened, engine = open_ours(
        recommending.directory, "openvino", EngineConfig(default_num_beams=1, max_num_seqs=2)
    )
    engine.close()
    card = opened.card()
    assert (card.defaults["num_beams"], card.defaults["max_tokens"]) == (1, 12)
    opened, engine = open_ours(recommending.directory, "openvino", EngineConfig(max_num_seqs=2))
    engine.close()
    assert opened.card().defaults["num_beams"] == 2  # as many as there is room for
    opened, engine = open_ours(
        recommending.directory, "openvino", EngineConfig(default_num_beams=4, max_num_seqs=2)
    )
    engine.close()
    with pytest.raises(StartError, match="default_num_beams is 4, expected at most 2"):
        opened.card()
