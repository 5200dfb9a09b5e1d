import math
import random
from collections import defaultdict

import numpy as np
import pytest
from tokenizers import Tokenizer as Inner
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from mindspore_serving.core.sampling_params import FinishReason, SamplingParams
from mindspore_serving.errors import InvalidInputs, Overloaded, ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import PROMPT, Engine
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from tests.llm.toy import ToyRunner
from tests.llm.toy_answers import continuation, next_token

VOCAB = 128


@pytest.fixture(scope="session")
def letters():
    """A tokenizer whose token i is the ASCII character i."""
    alphabet = sorted(ByteLevel.alphabet())
    shown = {char: char for char in alphabet if char.isascii()}
    rest = [byte for byte in range(VOCAB) if chr(byte) not in shown]
    # Byte-level BPE writes the bytes that are not printable as U+0100 and so on, in order.
    shown |= {chr(byte): chr(256 + place) for place, byte in enumerate(rest)}
    inner = Inner(BPE(vocab={shown[chr(byte)]: byte for byte in range(VOCAB)}, merges=[]))
    inner.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = ByteLevelDecoder()
    return Tokenizer(inner)


OPTIONS = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 16,
    "block_size": 4,
    "num_speculative_tokens": 0,
    "adaptive_speculation": False,  # what a test guesses does not depend on how long steps take
}


def make(tokenizer=None, eos_ids=(), num_blocks=64, runner=None, **options):
    config = EngineConfig(**{**OPTIONS, **options})
    return Engine(runner or ToyRunner(num_blocks, 4), tokenizer, config, eos_ids)


def greedy(**options):
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 6, **options})


def run(engine, most=5000):
    """Steps to the end: what was said, by request and index."""
    said = defaultdict(list)
    for _ in range(most):
        if not engine.has_work:
            break
        for request_id, generated in engine.step():
            said[request_id, generated.index].append(generated)
    assert not engine.has_work
    assert engine.stats().num_free_blocks == engine.stats().num_blocks
    return said


def tokens(parts):
    return [token for part in parts for token in part.token_ids]


def text(parts):
    return "".join(part.text for part in parts)


def ending(parts):
    assert all(part.finish_reason is None for part in parts[:-1])
    return parts[-1].finish_reason, parts[-1].stop_reason


def test_a_prompt_is_continued_as_the_arithmetic_says():
    engine = make()
    engine.add("a", [5, 7, 9], greedy())
    parts = run(engine)["a", 0]
    assert tokens(parts) == continuation([5, 7, 9], 6, VOCAB)
    assert len(parts) == 6
    assert ending(parts) == (FinishReason.LENGTH, None)


def test_an_end_token_of_the_model_ends_the_answer():
    third = continuation([5, 7, 9], 3, VOCAB)[2]
    engine = make(eos_ids=[third])
    engine.add("a", [5, 7, 9], greedy())
    engine.add("b", [5, 7, 9], greedy(ignore_eos=True))
    said = run(engine)
    assert tokens(said["a", 0]) == continuation([5, 7, 9], 3, VOCAB)
    assert ending(said["a", 0]) == (FinishReason.STOP, None)
    assert tokens(said["b", 0]) == continuation([5, 7, 9], 6, VOCAB)


def test_a_stop_token_ends_the_answer_and_is_named():
    answer = continuation([5, 7, 9], 6, VOCAB)
    engine = make()
    engine.add("a", [5, 7, 9], greedy(stop_token_ids=[answer[1]]))
    assert ending(run(engine)["a", 0]) == (FinishReason.STOP, answer[1])


def test_before_min_tokens_the_next_best_token_is_taken():
    first = next_token([5, 7, 9], VOCAB)
    engine = make()
    engine.add("a", [5, 7, 9], greedy(stop_token_ids=[first], min_tokens=1, max_tokens=2))
    expected = [first + 1, next_token([5, 7, 9, first + 1], VOCAB)]
    assert tokens(run(engine)["a", 0]) == expected


def test_only_allowed_tokens_are_chosen():
    engine = make()
    engine.add("a", [5, 7, 9], greedy(allowed_token_ids=[3, 90], max_tokens=20))
    expected: list[int] = []
    for _ in range(20):  # the likelier of the two: logits fall from the likeliest token upwards
        best = next_token([5, 7, 9, *expected], VOCAB)
        expected.append(min((3, 90), key=lambda token: (token - best) % VOCAB))
    assert tokens(run(engine)["a", 0]) == expected
    assert set(expected) == {3, 90}


def test_an_answer_ends_before_its_stop_string(letters):
    answer = continuation([5, 7, 9], 6, VOCAB)
    stop = "".join(map(chr, answer[2:4]))
    engine = make(letters)
    engine.add("a", [5, 7, 9], greedy(stop=[stop]))
    parts = run(engine)["a", 0]
    assert tokens(parts) == answer[:4]
    assert text(parts) == "".join(map(chr, answer[:2]))
    assert ending(parts) == (FinishReason.STOP, stop)


def test_the_text_is_that_of_the_tokens(letters):
    engine = make(letters)
    engine.add("a", letters.encode("Hello"), greedy(max_tokens=20))
    parts = run(engine)["a", 0]
    assert text(parts) == "".join(map(chr, tokens(parts)))


def test_an_answer_ends_where_the_context_does():
    engine = make(max_model_len=10)
    engine.add("a", [1] * 7, greedy(max_tokens=None))
    engine.add("b", [1] * 7, greedy(max_tokens=50))
    said = run(engine)
    for name in "ab":
        assert len(tokens(said[name, 0])) == 3
        assert ending(said[name, 0]) == (FinishReason.LENGTH, None)


def test_an_answer_ends_where_the_cache_does():
    engine = make(num_blocks=3)  # 12 tokens; the model could do 256
    assert engine.max_model_len == 12
    engine.add("a", [1] * 7, greedy(max_tokens=None))
    assert len(tokens(run(engine)["a", 0])) == 5


def test_logprobs_are_those_of_the_arithmetic():
    # Logits are 0, -0.5, -1 ... from the likeliest token upwards.
    log_sum = math.log(sum(math.exp(-0.5 * place) for place in range(VOCAB)))
    best = next_token([5, 7, 9], VOCAB)
    engine = make()
    engine.add("a", [5, 7, 9], greedy(logprobs=2, max_tokens=1))
    ((entries,),) = [part.logprobs for part in run(engine)["a", 0]]
    assert [(entry.token_id, entry.rank) for entry in entries] == [
        (best, 0),
        (best, 0),
        (best + 1, 1),
    ]
    assert entries[0].logprob == pytest.approx(-log_sum, abs=1e-5)
    assert entries[2].logprob == pytest.approx(-0.5 - log_sum, abs=1e-5)


@pytest.mark.parametrize("length", [1, 2, 16, 17, 33])
def test_prompt_logprobs_cover_the_prompt_whatever_its_pieces(length):
    prompt = [(7 * place) % VOCAB for place in range(length)]
    log_sum = math.log(sum(math.exp(-0.5 * place) for place in range(VOCAB)))
    engine = make()
    engine.add("a", prompt, greedy(prompt_logprobs=1, max_tokens=2))
    said = run(engine)
    assert tokens(said["a", PROMPT]) == prompt
    entries = [entry for part in said["a", PROMPT] for entry in part.logprobs]
    assert entries[0] == ()
    for place in range(1, length):
        best = next_token(prompt[:place], VOCAB)
        own, likeliest = entries[place]
        rank = (prompt[place] - best) % VOCAB
        assert (own.token_id, own.rank) == (prompt[place], rank)
        assert own.logprob == pytest.approx(-0.5 * rank - log_sum, abs=1e-4)
        assert (likeliest.token_id, likeliest.rank) == (best, 0)
    assert tokens(said["a", 0]) == continuation(prompt, 2, VOCAB)


def test_prompt_logprobs_survive_preemption():
    engine = make(num_blocks=12, max_num_seqs=8)
    rng = random.Random(3)
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randint(5, 20))] for _ in range(12)]
    for number, prompt in enumerate(prompts):
        engine.add(str(number), prompt, greedy(prompt_logprobs=0, max_tokens=20))
    said = run(engine)
    assert engine.stats().num_preemptions > 0
    for number, prompt in enumerate(prompts):
        assert tokens(said[str(number), PROMPT]) == prompt
        assert tokens(said[str(number), 0]) == continuation(prompt, 20, VOCAB)


def test_each_of_n_answers_is_right_and_ends():
    engine = make()
    engine.add("a", [5, 7, 9, 1, 2], SamplingParams(n=4, max_tokens=8, seed=1, temperature=3.0))
    said = run(engine)
    answers = [tokens(said["a", index]) for index in range(4)]
    assert len({tuple(answer) for answer in answers}) == 4
    for index, answer in enumerate(answers):
        assert len(answer) == 8
        assert ending(said["a", index]) == (FinishReason.LENGTH, None)


def test_n_answers_share_the_prompt():
    engine = make()
    engine.add("a", list(range(40)), greedy(n=8, max_tokens=3))
    for _ in range(4):
        engine.step()
    stats = engine.stats()
    assert stats.num_running == 8
    # Ten blocks of prompt for all, and one of answer for each.
    assert stats.num_blocks - stats.num_free_blocks == 10 + 8
    said = run(engine)
    for index in range(8):
        assert said["a", index]


def test_more_answers_than_can_run_at_once_are_all_given():
    engine = make(max_num_seqs=2)
    engine.add("a", [5, 7, 9], greedy(n=7))
    said = run(engine)
    for index in range(7):
        assert tokens(said["a", index]) == continuation([5, 7, 9], 6, VOCAB)


def test_n_answers_that_end_with_their_first_token():
    engine = make()
    engine.add("a", [5, 7, 9], greedy(n=3, max_tokens=1))
    said = run(engine)
    assert {index for _, index in said} == {0, 1, 2}


def test_a_seed_gives_the_same_tokens_whatever_else_runs():
    params = SamplingParams(temperature=2.0, seed=11, max_tokens=30, n=3)
    alone = make()
    alone.add("a", [5, 7, 9], params)
    expected = run(alone)
    crowded = make(num_blocks=16, num_speculative_tokens=3, min_ngram=1)
    for number in range(6):
        crowded.add(str(number), [number] * 9, SamplingParams(max_tokens=40))
    crowded.add("a", [5, 7, 9], params)
    said = run(crowded)
    assert crowded.stats().num_preemptions > 0
    for index in range(3):
        assert tokens(said["a", index]) == tokens(expected["a", index])


def test_without_a_seed_answers_differ():
    engine = make()
    for name in "ab":
        engine.add(name, [5, 7, 9], SamplingParams(temperature=3.0, max_tokens=20))
    said = run(engine)
    assert tokens(said["a", 0]) != tokens(said["b", 0])


class Repeating(ToyRunner):
    """Says 1, 2, ... 9, 1, 2, ... whatever came before, so that guesses are right."""

    def _likeliest(self, row):
        last = row.tokens[len(row.tokens) - row.num_logits :]
        return [token % 9 + 1 for token in last]


def test_right_guesses_save_steps_and_change_nothing():
    plain = make(runner=Repeating(64, 4))
    guessing = make(runner=Repeating(64, 4), num_speculative_tokens=4, min_ngram=2)
    for engine in (plain, guessing):
        engine.add("a", [1, 2, 3], greedy(max_tokens=60, logprobs=1))
    expected, said = run(plain)["a", 0], run(guessing)["a", 0]
    assert tokens(said) == tokens(expected) == [(3 + place) % 9 + 1 for place in range(60)]
    entries = [entry for part in said for entry in part.logprobs]
    assert entries == [entry for part in expected for entry in part.logprobs]
    stats = guessing.stats()
    assert stats.num_steps < plain.stats().num_steps / 2.5
    assert stats.num_accepted_tokens > 40


def test_a_stop_among_right_guesses_ends_the_answer_there(letters):
    engine = make(letters, runner=Repeating(64, 4), num_speculative_tokens=4)
    engine.add("a", [1, 2, 3], greedy(max_tokens=60, stop_token_ids=[7], min_tokens=25))
    engine.add("b", [1, 2, 3], greedy(max_tokens=60, stop=["\x08\x09\x01"]))
    said = run(engine)
    # Tokens 4..9 are places 0..5, then rounds of nine.  Sevens may not be sampled before place 25.
    expected, last = [], 3
    while not (last == 7 and len(expected) > 25):
        last = last % 9 + 1
        if last == 7 and len(expected) < 25:
            last = 8
        expected.append(last)
    assert tokens(said["a", 0]) == expected
    assert tokens(said["b", 0]) == [4, 5, 6, 7, 8, 9, 1]
    assert text(said["b", 0]) == "\x04\x05\x06\x07"


def test_penalties_are_exact_under_speculation():
    params = greedy(max_tokens=40, frequency_penalty=0.3, presence_penalty=0.2)
    plain = make(runner=Repeating(64, 4))
    guessing = make(runner=Repeating(64, 4), num_speculative_tokens=4, min_ngram=1)
    for engine in (plain, guessing):
        engine.add("a", [1, 2, 3], params)
    assert tokens(run(plain)["a", 0]) == tokens(run(guessing)["a", 0])
    assert guessing.stats().num_draft_tokens > 0


def test_an_aborted_request_says_so_for_every_answer():
    engine = make()
    engine.add("waiting", [1] * 20, greedy(n=3, max_tokens=100))
    engine.add("other", [5, 7, 9], greedy())
    assert engine.abort("waiting")
    said = run(engine)
    for index in range(3):
        assert [part.finish_reason for part in said["waiting", index]] == [FinishReason.ABORT]
    assert tokens(said["other", 0]) == continuation([5, 7, 9], 6, VOCAB)


def test_an_abort_while_decoding_ends_unfinished_completions():
    engine = make()
    engine.add("a", [5, 7, 9], greedy(n=2, max_tokens=100))
    for _ in range(5):
        engine.step()
    assert engine.abort("a")
    assert not engine.abort("a")
    assert engine.has_work
    ends = engine.step()
    assert [(name, end.index, end.finish_reason) for name, end in ends] == [
        ("a", 0, FinishReason.ABORT),
        ("a", 1, FinishReason.ABORT),
    ]
    assert engine.stats().num_free_blocks == 64
    assert not engine.has_work


def test_aborting_who_is_not_there_does_nothing():
    engine = make()
    assert not engine.abort("nobody")
    assert not engine.has_work


def test_an_id_is_free_again_when_its_end_was_told():
    engine = make()
    engine.add("a", [1], greedy())
    with pytest.raises(InvalidInputs, match="request_id 'a' is in use"):
        engine.add("a", [2], greedy())
    engine.abort("a")
    with pytest.raises(InvalidInputs, match="in use"):
        engine.add("a", [2], greedy())
    engine.step()
    engine.add("a", [2], greedy())
    assert tokens(run(engine)["a", 0]) == continuation([2], 6, VOCAB)


@pytest.mark.parametrize(
    ("prompt", "params", "options", "says"),
    [
        ([], {}, {}, "the prompt is empty, expected at least one token"),
        ([1] * 256, {}, {}, "has 256 tokens, expected at most 255"),
        ([1, 128], {}, {}, "has token id 128, expected ids from 0 to 127"),
        ([-1], {}, {}, "has token id -1, expected ids from 0 to 127"),
        ([1.5], {}, {}, "not a list of token ids"),
        ("text", {}, {}, "not a list of token ids"),
        ([1], {"stop": ["x"]}, {}, "stop needs a tokenizer"),
        ([1], {"bad_words": ["x"]}, {}, "bad_words needs a tokenizer"),
        ([1], {"stop_token_ids": [128]}, {}, "stop_token_ids has token id 128"),
        ([1], {"allowed_token_ids": [500]}, {}, "allowed_token_ids has token id 500"),
        ([1], {"logit_bias": {128: 1.0}}, {}, "logit_bias has token id 128"),
        ([1], {}, {"adapter": 9}, "adapter is 9, expected 0 or one of 1, 2"),
        ([1], {}, {"adapter": "x"}, "adapter is 'x', expected 0 or one of 1, 2"),
        ([1], {}, {"priority": "high"}, "priority is 'high', expected an int"),
        ([1], {}, {"cache_salt": None}, "cache_salt is None, expected a string"),
    ],
)
def test_bad_input_is_refused_with_a_clear_error_and_the_engine_goes_on(
    prompt, params, options, says
):
    engine = make()
    engine.add("good", [5, 7, 9], greedy())
    with pytest.raises(InvalidInputs, match=says):
        engine.add("bad", prompt, greedy(**params), **options)
    said = run(engine)
    assert list(said) == [("good", 0)]
    assert tokens(said["good", 0]) == continuation([5, 7, 9], 6, VOCAB)


def test_a_request_id_is_a_text():
    with pytest.raises(InvalidInputs, match="request_id is 7, expected a non-empty string"):
        make().add(7, [1], greedy())


def test_too_many_waiting_requests_are_refused():
    engine = make(max_num_waiting=2)
    engine.add("a", [1], greedy())
    engine.add("b", [1], greedy())
    with pytest.raises(Overloaded, match="2 requests wait already, at most 2 may"):
        engine.add("c", [1], greedy())
    run(engine)


class Failing(ToyRunner):
    """Fails at its third step."""

    def __init__(self, error):
        super().__init__(64, 4)
        self.count, self.error = 0, error

    def run(self, step):
        self.count += 1
        if self.count == 3:
            raise self.error
        return super().run(step)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ServingError("out of memory at 12 tokens"), "out of memory at 12 tokens"),
        (RuntimeError("/secret/path: segment 7"), "the model failed; see the log"),
    ],
)
def test_a_step_that_fails_ends_its_requests_and_the_engine_goes_on(error, cause):
    engine = make(runner=Failing(error), max_num_seqs=2)
    engine.add("a", [5, 7, 9], greedy())
    engine.add("b", [5] * 40, greedy(n=3))  # its prompt takes three steps and more
    engine.add("c", [5, 7, 9], greedy())
    said = run(engine)
    assert ending(said["a", 0]) == (FinishReason.ERROR, cause)
    assert tokens(said["a", 0]) == continuation([5, 7, 9], 2, VOCAB)
    for index in range(3):
        assert ending(said["b", index]) == (FinishReason.ERROR, cause)
    assert tokens(said["c", 0]) == continuation([5, 7, 9], 6, VOCAB)


def test_a_row_that_may_choose_nothing_fails_alone():
    engine = make()
    nothing = {"allowed_token_ids": [3], "stop_token_ids": [3], "min_tokens": 2}
    engine.add("bad", [5, 7, 9], greedy(n=2, **nothing))
    engine.add("good", [5, 7, 9], greedy())
    said = run(engine)
    for index in range(2):
        reason, cause = ending(said["bad", index])
        assert reason is FinishReason.ERROR
        assert "forbid every one" in cause
    assert tokens(said["good", 0]) == continuation([5, 7, 9], 6, VOCAB)


def test_the_numbers_add_up():
    engine = make()
    engine.add("a", list(range(9)), greedy())
    engine.add("b", [1], greedy(n=2, max_tokens=3))
    assert (engine.stats().num_waiting, engine.stats().num_running) == (2, 0)
    engine.step()
    assert (engine.stats().num_waiting, engine.stats().num_running) == (0, 3)
    run(engine)
    stats = engine.stats()
    assert stats.num_prompt_tokens == 10
    assert stats.num_generated_tokens == 12
    assert stats.num_steps == 6
    assert stats.num_cache_queries == 10


def test_adapters_never_share_blocks():
    engine = make()
    for adapter in (0, 1, 0):
        engine.add("a", list(range(9)), greedy(), adapter=adapter)
        assert tokens(run(engine)["a", 0]) == continuation(list(range(9)), 6, VOCAB, adapter)
    assert engine.stats().num_cache_hits == 8  # of the third by the first


def test_tenants_never_share_blocks():
    engine = make()
    for salt in ("a", "b", "a"):
        engine.add("x", list(range(9)), greedy(), cache_salt=salt)
        run(engine)
    assert engine.stats().num_cache_hits == 8


def test_n_answers_to_a_scored_prompt_are_sampled_from_its_last_token():
    engine = make()
    engine.add("a", [5, 7, 9], greedy(n=3, prompt_logprobs=0))  # three logits, three answers
    said = run(engine)
    assert tokens(said["a", PROMPT]) == [5, 7, 9]
    for index in range(3):
        assert tokens(said["a", index]) == continuation([5, 7, 9], 6, VOCAB)


class EmbeddingToy(ToyRunner):
    """The toy with embeddings of one number: the sum of the row's tokens."""

    hidden_size = 1

    def embed(self, step):
        return np.array([[sum(row.tokens)] for row in step.rows], np.float32)


def test_generations_do_not_starve_a_long_prompt_to_embed():
    """Eight blocks of four tokens: seven for the prompt, three for each of the generations that
    follow one another without end, two at a time."""
    engine = Engine(EmbeddingToy(num_blocks=8), None, EngineConfig(block_size=4))
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    engine.add("0", [1, 2], params)
    for _ in range(4):
        engine.step()
    engine.add("1", [1, 2], params)
    engine.add_embedding("long", [7] * 28)
    found, finished, num_steps = {}, 0, 0
    while "long" not in found:
        num_steps += 1
        assert num_steps < 50
        for name, output in engine.step():
            found[name] = output
            if name != "long" and output.finish_reason is not None:
                finished += 1
                engine.add(str(finished + 1), [1, 2], params)
    np.testing.assert_array_equal(found["long"], [1.0])
    engine.step()
    assert engine.stats().num_running == 2  # who was held back goes on


def test_the_engine_tells_which_requests_a_step_started():
    """Room for one at a time: the other starts when the first has ended, and not again after."""
    engine = Engine(ToyRunner(), None, EngineConfig(block_size=4, max_num_seqs=1))
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    engine.add("a", [1, 2], params)
    engine.add("b", [3], params)
    told = []
    while engine.has_work:
        engine.step()
        told.append(engine.started[:])
    assert told == [["a"], [], [], ["b"], [], []]


def test_forked_completions_neither_start_a_request_nor_count_as_cached():
    """Room for one sequence: the second answer waits, and finds what the first has left."""
    engine = Engine(ToyRunner(), None, EngineConfig(block_size=4, max_num_seqs=1))
    engine.add("a", list(range(1, 13)), SamplingParams(max_tokens=3, n=2, ignore_eos=True))
    told, cached = [], []
    while engine.has_work:
        cached += [said.num_cached_tokens for _, said in engine.step() if said.finish_reason]
        told += engine.started
    assert told == ["a"]
    assert engine.stats().num_cache_hits > 0
    assert cached == [0, 0]
