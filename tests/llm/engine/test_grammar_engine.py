"""Answers that follow a grammar, out of an engine whose model says nothing but nonsense."""

import json
import re
import threading
from collections import defaultdict
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.core.sampling_params import FinishReason, SamplingParams
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.chat.json_reader import read_value
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.grammar import state as grammar_state
from mindspore_serving.llm.grammar.compiler import GrammarCompiler
from tests.llm.schemas import COMPACT, PERSON, fulfils
from tests.llm.tokenizers_trained import opened
from tests.llm.toy import OverlappingToy, ToyRunner
from tests.waiting import PATIENCE

EOS = 1
VOCAB = opened("byte_level").vocab_size + 37  # the model has logits that no token has
STOP, LENGTH, ERROR = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR


@cache
def _table(size):
    return (np.random.default_rng(11).normal(size=(size, size)) * 3).astype(np.float32)


class NonsenseRunner(ToyRunner):
    """Logits like those of a model with random weights: of each context its own."""

    def __init__(self, num_blocks=96, vocab_size=VOCAB):
        super().__init__(num_blocks, 16, vocab_size, max_model_len=512)
        self._table = _table(vocab_size)

    def run(self, step):
        best = super().run(step).argmax(axis=1) if any(r.num_logits for r in step.rows) else []
        return self._table[best]


class OverlappingNonsense(OverlappingToy, NonsenseRunner):
    """The same with several steps in flight."""


def make(eos_ids=(EOS,), runner=None, draft=None, **options):
    config = EngineConfig(
        **{"max_num_seqs": 16, "max_num_batched_tokens": 64, "block_size": 16, **options},
        adaptive_speculation=False,
    )
    tokenizer = opened("byte_level")
    return Engine(runner or NonsenseRunner(), tokenizer, config, eos_ids, draft=draft)


COMPILER = GrammarCompiler(opened("byte_level"), VOCAB, [EOS])
ENDLESS = GrammarCompiler(opened("byte_level"), VOCAB)


def run(engine):
    """(text, tokens, finish reason, stop reason) by request and index."""
    parts = defaultdict(list)
    for _ in range(5000):
        if not engine.has_work:
            break
        for request_id, generated in engine.step():
            parts[request_id, generated.index].append(generated)
    assert not engine.has_work
    assert engine.stats().num_free_blocks == engine.stats().num_blocks
    return {
        key: (
            "".join(part.text for part in said),
            tuple(token for part in said for token in part.token_ids),
            said[-1].finish_reason,
            said[-1].stop_reason,
        )
        for key, said in parts.items()
    }


def ask(grammar, engine=None, compiler=COMPILER, **params):
    """One answer."""
    engine = engine or make()
    asked = SamplingParams(**{"max_tokens": 400, "seed": 5, **params})
    engine.add("a", [5, 6, 7], asked, grammar=grammar and compiler.compile(grammar))
    return run(engine)["a", 0]


SCHEMAS = [
    PERSON,
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": -5, "maximum": 5}]},
    {"enum": ["a", "ab", 3, None, {"x": [1]}]},
]


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_fulfils_its_schema(schema, temperature):
    grammar = Grammar("json_schema", json.dumps(schema))
    text, _, reason, stop = ask(grammar, temperature=temperature)
    assert fulfils(json.loads(text), schema)
    assert (reason, stop) == (STOP, None)


def test_an_answer_matches_its_regular_expression():
    text, _, reason, _ = ask(Grammar("regex", r"(yes|no), [A-Z][a-z]{2,8} \d{1,3}\."))
    assert re.fullmatch(r"(yes|no), [A-Z][a-z]{2,8} \d{1,3}\.", text)
    assert reason is STOP


def test_an_answer_matches_a_lark_grammar():
    lark = 'start: sum\nsum: term ("+" term){1,2}\nterm: /[0-9]/ | "(" /[0-9]/ "*" /[0-9]/ ")"'
    text, _, reason, _ = ask(Grammar("lark", lark))
    assert isinstance(eval(text), int)
    assert "+" in text
    assert reason is STOP


CLOSING = dict.fromkeys((opened("byte_level").encode(c, False)[0] for c in '"}]'), 9.0)


def test_any_json_object_is_accepted():
    text, _, reason, _ = ask(Grammar("json_object"), logit_bias=CLOSING)
    assert isinstance(json.loads(text), dict)
    assert reason is STOP


def test_an_answer_cut_by_length_is_a_prefix_of_json():
    long = {"type": "string", "minLength": 99}
    schema = json.dumps({"type": "object", "properties": {"a": long}, "required": ["a"]})
    text, tokens, reason, _ = ask(Grammar("json_schema", schema), max_tokens=20)
    assert (len(tokens), reason) == (20, LENGTH)
    first, *rest = text.rstrip("\ufffd")
    reading = read_value(first)
    next(reading)
    for char in rest:
        reading.send(char)  # raises Broken if it is none, StopIteration if it has ended


def names():
    return st.text("abc", min_size=1, max_size=3)


LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(lambda n: {"type": "integer", "minimum": -n, "maximum": n}, st.integers(0, 1000)),
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 5)),
    st.builds(lambda values: {"enum": values}, st.lists(names(), min_size=1, max_size=3)),
)


def _object(properties, required):
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name in required],
        "additionalProperties": False,
    }


INNER = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(_object, st.dictionaries(names(), inner, max_size=3), st.sets(names())),
        st.builds(lambda item: {"type": "array", "items": item, "maxItems": 2}, inner),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=2)),
    ),
    max_leaves=5,
)


@settings(max_examples=30)
@given(INNER, st.integers(0, 2**32), st.booleans())
def test_answers_fulfil_any_schema(schema, seed, speculates):
    engine = make(num_speculative_tokens=3 if speculates else 0, min_ngram=1)
    grammar = Grammar("json_schema", json.dumps(schema))
    text, _, reason, _ = ask(grammar, engine, seed=seed)
    if reason is STOP:  # else there was no room for all its white space
        assert fulfils(json.loads(text), schema)
    else:
        assert reason is LENGTH


def test_each_answer_to_a_prompt_follows_the_grammar_by_itself():
    engine = make()
    grammar = COMPILER.compile(Grammar("json_schema", json.dumps(COMPACT)))
    engine.add("a", [5, 6, 7], SamplingParams(max_tokens=400, n=3, seed=5), grammar=grammar)
    said = run(engine)
    assert len({text for text, *_ in said.values()}) == 3
    for text, _, reason, _ in said.values():
        assert fulfils(json.loads(text), COMPACT)
        assert reason is STOP


@pytest.mark.parametrize("has_draft", [False, True])
def test_guesses_change_nothing_but_the_number_of_steps(has_draft):
    grammar = Grammar("json_schema", json.dumps(COMPACT))
    for seed in range(2 if has_draft else 4):
        draft = NonsenseRunner() if has_draft else None
        plain, guessing = (
            make(num_speculative_tokens=0),
            make(num_speculative_tokens=4, min_ngram=32 if has_draft else 1, draft=draft),
        )
        for temperature in (0.0, 1.0):
            options = {"seed": seed, "temperature": temperature}
            assert ask(grammar, plain, **options) == ask(grammar, guessing, **options)
        assert guessing.stats().num_accepted_tokens > 0
        assert guessing.stats().num_steps < plain.stats().num_steps
        assert 0 < guessing.stats().num_forced_tokens <= guessing.stats().num_accepted_tokens


def test_tokens_forced_by_a_grammar_take_few_steps():
    """Though the model and its draft say something else, and no text says it."""
    text = "The quick brown fox jumps over the lazy dog. The quick brown fox jumps."
    num_tokens = len(opened("byte_level").encode(text))
    for draft in (None, NonsenseRunner()):
        engine = make(draft=draft, min_ngram=32)
        said, _, reason, _ = ask(Grammar("regex", re.escape(text)), engine)
        assert (said, reason) == (text, STOP)
        assert engine.stats().num_steps < num_tokens / 3
        saved = num_tokens - engine.stats().num_steps  # the prompt's step gives the first token
        assert saved <= engine.stats().num_forced_tokens + 1 <= num_tokens


def test_an_answer_without_grammar_is_not_changed_by_grammars_beside():
    def free(grammars):
        """Every piece of the answers that have none, with log-probabilities."""
        engine = make()
        for number in range(5):
            params = SamplingParams(max_tokens=60, seed=number, temperature=number % 2, logprobs=2)
            engine.add(f"free {number}", [number + 3, 9], params)
        for number, grammar in enumerate(grammars):
            params = SamplingParams(max_tokens=60, seed=number, n=2)
            engine.add(f"bound {number}", [number + 3, 9], params, grammar=grammar)
        parts = defaultdict(list)
        while engine.has_work:
            for request_id, generated in engine.step():
                parts[request_id].append(generated)
        return {name: said for name, said in parts.items() if name.startswith("free")}

    bound = [COMPILER.compile(Grammar("json_schema", json.dumps(schema))) for schema in SCHEMAS]
    assert free(bound) == free([])


def test_answers_are_not_changed_by_steps_in_flight():
    grammar = COMPILER.compile(Grammar("json_schema", json.dumps(COMPACT)))

    def answers(runner, **options):
        engine = make(runner=runner, **options)
        for number in range(6):
            params = SamplingParams(max_tokens=100, seed=number, n=1 + number % 2)
            engine.add(str(number), [number + 3], params, grammar=grammar if number % 3 else None)
        engine.step()
        assert engine.abort("5")
        return {key: answer for key, answer in run(engine).items() if key[0] != "5"}

    runner = OverlappingNonsense()
    divided = answers(runner, pipeline_parallel=2, pipeline_groups=3)
    assert divided == answers(NonsenseRunner())
    assert runner.max_begun == 3


def test_a_preempted_answer_continues_where_the_text_ended():
    grammar = COMPILER.compile(Grammar("json_schema", json.dumps(COMPACT)))

    def answers(num_blocks):
        engine = make(runner=NonsenseRunner(num_blocks), max_model_len=144)
        for number in range(6):
            params = SamplingParams(max_tokens=140, seed=number)
            engine.add(str(number), [number + 3], params, grammar=grammar)
        return run(engine), engine.stats().num_preemptions

    roomy, none = answers(96)
    tight, some = answers(9)
    assert none == 0 < some
    assert tight == roomy


# What a request asks for beside the grammar.


def test_a_finished_grammar_ends_the_answer_without_an_end_token():
    for compiler, eos_ids in ((COMPILER, (EOS,)), (ENDLESS, ())):
        text, tokens, reason, stop = ask(Grammar("regex", "[ab]{3}"), make(eos_ids), compiler)
        assert re.fullmatch("[ab]{3}", text)
        assert opened("byte_level").decode(tokens) == text
        assert EOS not in tokens
        assert (reason, stop) == (STOP, None)


def test_a_grammar_that_may_end_ends_with_the_end_token():
    text, tokens, reason, stop = ask(Grammar("regex", "[ab]+"), logit_bias={EOS: 50.0})
    assert tokens[-1] == EOS
    assert re.fullmatch("[ab]+", text)
    assert (reason, stop) == (STOP, None)


def test_end_tokens_that_are_ignored_are_never_chosen():
    asked = {"logit_bias": {EOS: 50.0}, "ignore_eos": True, "max_tokens": 9}
    text, tokens, reason, _ = ask(Grammar("regex", "[ab]+"), **asked)
    assert (len(tokens), reason) == (9, LENGTH)
    assert re.fullmatch("[ab]{9,}", text)
    assert ask(Grammar("regex", "[ab]{3}"), **asked)[2] is STOP


def test_min_tokens_holds_as_long_as_the_grammar_goes_on():
    biased = {"logit_bias": {EOS: 50.0}}
    tokens = ask(Grammar("regex", "[ab]+"), **biased, min_tokens=7)[1]
    assert tokens.index(EOS) == len(tokens) - 1 == 7
    text, tokens, reason, _ = ask(Grammar("regex", "[ab]"), **biased, min_tokens=7)
    assert (len(text), len(tokens), reason) == (1, 1, STOP)


def test_a_grammar_finished_by_the_last_token_ends_with_stop():
    tokens = ask(Grammar("regex", "[ab]{12}"))[1]
    assert ask(Grammar("regex", "[ab]{12}"), max_tokens=len(tokens))[2] is STOP
    assert ask(Grammar("regex", "[ab]{12}"), max_tokens=len(tokens) - 1)[2] is LENGTH


def letter(char):
    return opened("byte_level").encode(char, add_special=False)[0]


def test_only_allowed_tokens_follow_the_grammar():
    text, _, reason, _ = ask(Grammar("regex", "[a-z]{4}"), allowed_token_ids=[letter("a")])
    assert (text, reason) == ("aaaa", STOP)


def test_an_answer_that_may_end_and_cannot_go_on_ends():
    text, _, reason, _ = ask(Grammar("regex", "a(b+)?"), allowed_token_ids=[letter("a")])
    assert (text, reason) == ("a", STOP)


def test_an_answer_that_may_neither_end_nor_go_on_is_an_error():
    text, _, reason, stop = ask(Grammar("regex", "ab"), allowed_token_ids=[letter("a")])
    assert (text, reason) == ("a", ERROR)
    assert "allowed_token_ids, the grammar" in stop


def test_a_bias_chooses_among_tokens_that_the_grammar_allows():
    bias = {letter("a"): 60.0, letter("x"): 90.0}
    assert ask(Grammar("regex", "[a-c]{5}"), logit_bias=bias)[0] == "aaaaa"


def test_stop_strings_end_an_answer_before_its_grammar_does():
    grammar = Grammar("regex", "[a-c]{3}---[a-c]{9}")
    text, _, reason, stop = ask(grammar, stop=["--"])
    assert re.fullmatch("[a-c]{3}", text)
    assert (reason, stop) == (STOP, "--")
    text, *_ = ask(Grammar("regex", "[a-c]{3}-"), stop=["--"])
    assert re.fullmatch("[a-c]{3}-", text)  # what was held back is shown


def test_a_stop_token_of_the_grammar_ends_the_answer():
    asked = {"stop_token_ids": [letter("b")], "logit_bias": {letter("b"): 60.0}}
    _, tokens, reason, stop = ask(Grammar("regex", "[abc]{9}"), **asked)
    assert (tokens, reason, stop) == ((letter("b"),), STOP, letter("b"))


# Failures.


def test_a_grammar_of_another_vocabulary_is_refused():
    other = GrammarCompiler(opened("byte_level"), VOCAB + 1).compile(Grammar("regex", "a"))
    with pytest.raises(InvalidInputs, match=f"{VOCAB + 1} tokens, expected {VOCAB}"):
        make().add("a", [1], SamplingParams(), grammar=other)
    with pytest.raises(InvalidInputs, match="Grammar, expected a CompiledGrammar"):
        make().add("a", [1], SamplingParams(), grammar=Grammar("regex", "a"))


def test_a_grammar_that_fails_ends_its_answer_alone():
    engine = make()
    grammar = COMPILER.compile(Grammar("regex", "[a-c]{50}"))
    for name in ("bad", "good"):
        engine.add(name, [5, 6, 7], SamplingParams(max_tokens=60, seed=5), grammar=grammar)
    engine.add("free", [5, 6, 7], SamplingParams(max_tokens=60, seed=5))
    first = engine.step()
    bad = next(b for b in engine._table.completions.values() if b.request.request_id == "bad")
    bad.grammar.matcher.consume_token(EOS)  # what a limit of the library does to it
    said = run(engine)
    assert said["bad", 0][2] is ERROR
    assert "the grammar failed" in said["bad", 0][3]
    assert said["good", 0][2] is STOP
    assert said["free", 0][2] in (STOP, LENGTH)
    assert len(first) == 3


def test_masks_that_take_too_long_end_their_answers_alone(monkeypatch):
    engine = make()
    late = threading.Event()

    def hang(executor, wanted, masks):
        masks[1:] = 0xFFFFFFFF  # the first is never computed
        late.wait()

    grammar = COMPILER.compile(Grammar("regex", "[ab]{3}"))
    for name in ("bad", "other"):
        engine.add(name, [5, 6, 7], SamplingParams(seed=5), grammar=grammar)
    engine.add("free", [5, 6, 7], SamplingParams(max_tokens=6, ignore_eos=True))
    with monkeypatch.context() as patched:
        patched.setattr(grammar_state, "MASK_SECONDS", 0.01)
        patched.setattr(grammar_state, "_fill", hang)
        first = dict(engine.step())
    assert [first[name].finish_reason for name in ("bad", "other", "free")] == [ERROR, ERROR, None]
    assert [first[name].blames_request for name in ("bad", "other")] == [True, False]
    engine.add("next", [5], SamplingParams(seed=1), grammar=grammar)
    said = run(engine)
    assert (said["free", 0][2], said["next", 0][2]) == (LENGTH, STOP)
    late.set()


def test_masks_of_a_failing_step_are_discarded():
    class Failing(NonsenseRunner):
        fails = True

        def run(self, step):
            if self.fails:
                self.fails = False
                raise RuntimeError("no memory")
            return super().run(step)

    engine = make(runner=Failing())
    grammar = COMPILER.compile(Grammar("regex", "[ab]{3}"))
    engine.add("a", [5], SamplingParams(seed=1), grammar=grammar)
    assert run(engine)["a", 0][2] is ERROR
    engine.add("b", [5], SamplingParams(seed=1), grammar=grammar)
    assert run(engine)["b", 0][2] is STOP


def test_masks_are_computed_while_the_model_runs(monkeypatch):
    """The model waits for the masks: were they computed behind it, it would wait for ever."""
    filled = threading.Event()
    fill = grammar_state._fill

    def watched(*args):
        fill(*args)
        filled.set()

    class Waiting(NonsenseRunner):
        def run(self, step):
            assert filled.wait(PATIENCE)
            filled.clear()
            return super().run(step)

    monkeypatch.setattr(grammar_state, "_fill", watched)
    assert ask(Grammar("regex", "[ab]{5}"), make(runner=Waiting()))[2] is STOP


def test_an_abort_does_not_disturb_other_requests():
    engine = make()
    grammar = COMPILER.compile(Grammar("json_schema", json.dumps(COMPACT)))
    for name in ("gone", "stays"):
        engine.add(name, [5, 6], SamplingParams(max_tokens=400, seed=2), grammar=grammar)
    for _ in range(4):
        engine.step()
    assert engine.abort("gone")
    said = run(engine)
    assert said["gone", 0][2] is FinishReason.ABORT
    assert said["stays", 0][2] is STOP


def test_closing_ends_the_thread_of_the_masks():
    others = threading.enumerate()  # of which some may end meanwhile
    engine = make()
    ask(Grammar("regex", "[ab]{3}"), engine)
    (ours,) = [thread for thread in threading.enumerate() if thread not in others]
    assert ours.name.startswith("masks")
    engine.close()
    assert not ours.is_alive()
