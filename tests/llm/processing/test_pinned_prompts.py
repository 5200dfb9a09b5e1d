"""Pinned prompts: computed before the first request, and found whatever came in between."""

import pytest

from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.engine.pinning import PinnedPrefix, pin
from tests.llm import chatty
from tests.llm.toy import ToyRunner
from tests.llm.toy_answers import continuation

BLOCK = 4
BEGINNING = list(range(22))  # five full blocks, and two tokens
FULL = len(BEGINNING) // BLOCK * BLOCK
ONE = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


def make(num_blocks=32, **options):
    config = EngineConfig(
        max_num_seqs=8, max_num_batched_tokens=16, block_size=BLOCK, max_model_len=64, **options
    )
    return Engine(ToyRunner(num_blocks, BLOCK), None, config)


def ask(engine, prompt, **options):
    """The next token of `prompt`, and how many of its tokens were in the cache."""
    engine.add("0", prompt, ONE, **options)
    while engine.has_work:
        for _, one in engine.step():
            assert one.finish_reason is not None
            return list(one.token_ids), one.num_cached_tokens
    raise AssertionError("no answer")


def flood(engine):
    for start in range(30, 110):
        ask(engine, [start] * 50, cache_salt=f"{start}")


def test_a_pinned_prompt_stays_cached_through_a_flood_of_prompts():
    engine = make()
    assert pin(engine, [PinnedPrefix("one", BEGINNING)]) == FULL // BLOCK
    other = [*range(60, 90)]
    ask(engine, other)
    flood(engine)
    prompt = [*BEGINNING, 100, 101]
    assert ask(engine, prompt) == (continuation(prompt, 1, 128), FULL)
    assert ask(engine, other)[1] == 0


def test_pinned_prompts_that_begin_alike_share_their_blocks():
    engine = make()
    both = [PinnedPrefix("one", BEGINNING), PinnedPrefix("two", [*BEGINNING[:16], *range(90, 98)])]
    assert pin(engine, both) == 7
    assert engine.stats().num_free_blocks == engine.num_blocks - 7


def test_a_prompt_is_pinned_for_its_salt_and_adapter():
    engine = make()
    pin(engine, [PinnedPrefix("one", BEGINNING, "mine", 2)])
    flood(engine)
    assert ask(engine, [*BEGINNING, 1], cache_salt="mine", adapter=2)[1] == FULL
    assert ask(engine, [*BEGINNING, 1], cache_salt="mine")[1] == 0
    assert ask(engine, [*BEGINNING, 1], adapter=2)[1] == 0


def test_less_than_a_block_pins_nothing():
    engine = make()
    assert pin(engine, [PinnedPrefix("one", [1, 2, 3])]) == 0
    assert engine.stats().num_free_blocks == engine.num_blocks


@pytest.mark.parametrize(("num_blocks", "length"), [(32, 68), (18, 20)])
def test_prompts_that_leave_too_little_of_the_cache_are_refused(num_blocks, length):
    with pytest.raises(StartError, match=r"pinned_prompts take \d+ of the cache's .* raise kv_"):
        pin(make(num_blocks), [PinnedPrefix("one", list(range(length)))])


def test_prompts_that_cannot_be_pinned_are_refused_by_name():
    with pytest.raises(StartError, match="one: "):
        pin(make(), [PinnedPrefix("one", [1, 2, 3, 4000])])
    with pytest.raises(InvalidInputs, match="needs enable_prefix_caching"):
        make(enable_prefix_caching=False, pinned_prompts=["text"])
    stateful = Engine(ToyRunner(32, BLOCK, num_slots=9), None, EngineConfig(block_size=BLOCK))
    with pytest.raises(StartError, match="layers with a state"):
        pin(stateful, [PinnedPrefix("one", BEGINNING)])


SYSTEM = "You are a careful assistant who answers in one word and never in two. " * 3
OPTIONS = {
    "dtype": "f32", "num_threads": 1, "max_model_len": 256, "kv_cache_memory": 8 << 20,
    "num_speculative_tokens": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return chatty.build(tmp_path_factory.mktemp("models"))


def test_conversations_and_texts_of_a_file_are_known_to_the_first_request(directory, tmp_path):
    path = tmp_path / "pinned.yaml"
    path.write_text(f"- {SYSTEM!r}\n- [{{role: system, content: {SYSTEM!r}}}]\n")
    with LLM(directory, pinned_prompts=str(path), **OPTIONS) as llm:
        before = llm.stats().num_cache_hits
        llm.generate([SYSTEM + "Now answer."], ONE, False)
        texts = llm.stats().num_cache_hits - before
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Why?"}]
        llm.chat(messages, ONE, False)
        chats = llm.stats().num_cache_hits - before - texts
        assert llm.stats().num_free_blocks < llm.stats().num_blocks
        num_tokens = len(llm.tokenizer.encode(SYSTEM))
    assert min(texts, chats) > num_tokens - 2 * 32
    assert texts % 32 == chats % 32 == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("nowhere.yaml", "'nowhere.yaml', which cannot be read"),
        ([3], r"pinned_prompts\[0\]: .*expected a list of texts"),
        (["a", {"text": "b"}], r"pinned_prompts\[1\]: .*unknown field `text`"),
        ([{"prompt": "a", "messages": []}], "exactly one of prompt and messages"),
        ([{"prompt": "a", "adapter": "sql"}], "adapter is 'sql'"),
        ({"prompt": "a"}, "expected a list of texts"),
    ],
)
def test_invalid_prompts_are_refused_by_index(opened, given, words):
    with pytest.raises(StartError, match=words):
        opened(given)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 500_000, "line 1: it is nested too deeply"),
        ("- " * 5000, "it is nested too deeply"),
        ("- !!bool perhaps", "a value cannot be read"),
        ("- \0", "it is not YAML"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_name(opened, tmp_path, text, words):
    path = tmp_path / "pinned.yaml"
    path.write_text(text)
    with pytest.raises(StartError, match=f"pinned_prompts is '{path}', which .*{words}"):
        opened(str(path))


@pytest.fixture(scope="module")
def opened(directory):
    """Pins prompts of a model that is open already."""
    from dataclasses import replace

    from mindspore_serving.llm.loader import open_model
    from mindspore_serving.llm.options import make_config
    from mindspore_serving.llm.processing.pinned_prompts import pin_prompts
    from mindspore_serving.llm.processing.processor import Processor

    found = open_model(directory, "openvino", make_config(OPTIONS))
    processor = Processor(found.tokenizer, found.chat_template, found.card(), found.find_adapter)
    yield lambda given: pin_prompts(
        replace(found, config=replace(found.config, pinned_prompts=given)), processor
    )
    found.engine.close()
