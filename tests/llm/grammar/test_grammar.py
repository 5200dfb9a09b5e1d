import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.frontends.tgi.fields import schema_grammar
from mindspore_serving.llm.grammar import probing
from mindspore_serving.llm.grammar.compiler import (
    MAX_REGEX_BYTES,
    MAX_SOURCE_BYTES,
    GrammarCompiler,
)
from mindspore_serving.llm.grammar.source import (
    insert_special_tokens,
    regex_literal,
    rename_start,
)
from mindspore_serving.llm.grammar.tokens import TokenTable
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from tests.llm.tokenizers_trained import opened

END = 1  # "</s>" of the byte-level tokenizer
EXTRA = 37  # logits past the tokenizer


def compiler_of(kind="byte_level", eos_ids=(END,), extra=EXTRA):
    tokenizer = opened(kind)
    return tokenizer, GrammarCompiler(tokenizer, tokenizer.vocab_size + extra, eos_ids)


@pytest.fixture(scope="module")
def compiler():
    return compiler_of()[1]


def allowed(state):
    mask = np.frombuffer(state.matcher.compute_bitmask(), np.uint8)
    return np.nonzero(np.unpackbits(mask, bitorder="little"))[0].tolist()


def write(state, eos_ids=(), seed=0, most=300):
    """A random answer, without its end token."""
    rng = np.random.default_rng(seed)
    ids = []
    while not state.is_finished and len(ids) < most:
        token_id = int(rng.choice(allowed(state)))
        if token_id in eos_ids:
            break
        ids.append(token_id)
        state.advance(token_id)
        assert state.error is None
    return ids


MANY = {"type": "object", "properties": {str(number): {} for number in range(1001)}}
LONG = f'start: {"(a|b) " * 66_000}\na: "x"\nb: "y"'


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar("json_schema", '{"type": "frog"}'), "json_schema.*frog"),
        (Grammar("json_schema", '{"not": {"type": "string"}}'), "not"),
        (Grammar("json_schema", '{"type": "array", "uniqueItems": true}'), "uniqueItems"),
        (Grammar("json_schema", '{"$ref": "http://localhost/a"}'), "does not fetch"),
        (Grammar("json_schema", '{"$ref": "#/$defs/a"}'), "does not exist"),
        (Grammar("json_schema", '{"type": "object"'), "json_schema.*EOF"),
        (Grammar("json_schema", "[1]"), "object"),
        (Grammar("json_schema", "[" * 5000), "recursion"),
        (Grammar("json_schema", "false"), "json_schema"),
        (Grammar("json_schema", '{"type": "integer", "multipleOf": 999983, "minimum": 1}'), "fuel"),
        (Grammar("regex", "(a"), "regex.*unclosed"),
        (Grammar("regex", "a(?=b)"), "look-ahead"),
        (Grammar("regex", "()"), "only the empty answer"),
        (Grammar("lark", "start: x"), 'lark.*unknown name: "x"'),
        (Grammar("lark", "start: <|not_there|>"), "not_there"),
        (Grammar("lark", 'x: "a"'), "start"),
        (Grammar("regex", ""), "empty"),
        (Grammar("gbnf", "x"), "'gbnf', expected json_object"),
        (Grammar("lark", "start: a\na: start"), "leads to nothing but itself"),
        (Grammar("json_schema", '{"$ref": "#"}'), "leads to nothing but itself"),
        (Grammar("json_schema", json.dumps(MANY)), "json_schema has 1001 properties in one object"),
        (Grammar("lark", LONG), "cannot be used: it has too many rules, alternatives or prop"),
    ],
)
def test_unusable_grammars_are_refused_with_the_reason(compiler, grammar, reason):
    with pytest.raises(InvalidInputs, match=f"(?s){reason}"):
        compiler.compile(grammar)


def test_a_source_may_have_so_many_bytes(compiler):
    most = MAX_REGEX_BYTES // 2
    compiler.compile(Grammar("regex", "é" * most))
    with pytest.raises(InvalidInputs, match=f"{2 * most + 2} bytes, expected at most {2 * most}"):
        compiler.compile(Grammar("regex", "é" * (most + 1)))
    with pytest.raises(InvalidInputs, match=f"at most {MAX_SOURCE_BYTES}"):
        compiler.compile(Grammar("lark", "#" * (MAX_SOURCE_BYTES + 1)))


def test_reasons_are_short(compiler):
    with pytest.raises(InvalidInputs) as caught:
        compiler.compile(Grammar("regex", "(" * 60_000))
    assert len(str(caught.value)) < 700


def test_the_latest_grammars_are_kept(compiler):
    first = compiler.compile(Grammar("regex", "first"))
    assert compiler.compile(Grammar("regex", "first")) is first
    for number in range(63):
        compiler.compile(Grammar("regex", f"x{number}"))
    assert compiler.compile(Grammar("regex", "first")) is first
    for number in range(64):
        compiler.compile(Grammar("regex", f"y{number}"))
    assert compiler.compile(Grammar("regex", "first")) is not first


def test_threads_compile_beside_each_other(compiler):
    sources = [f'{{"enum": ["a{number % 7}", "b"]}}' for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda s: compiler.compile(Grammar("json_schema", s)), sources))
    assert [one.grammar.source for one in found] == sources
    for one in found:
        assert write(one.begin())


def test_answers_do_not_share_their_state(compiler):
    compiled = compiler.compile(Grammar("regex", "[ab]{2}"))
    one, other = compiled.begin(), compiled.begin()
    before = allowed(other)
    one.advance(allowed(one)[0])
    assert allowed(other) == before


def test_tokens_that_stand_for_nothing_are_never_allowed():
    tokenizer, compiler = compiler_of()
    state = compiler.compile(Grammar("regex", "(?s:.*)")).begin()
    found = allowed(state)
    assert END in found
    assert max(found) < tokenizer.vocab_size
    specials = [one for one in range(tokenizer.vocab_size) if tokenizer.is_special(one)]
    assert set(found).isdisjoint(set(specials) - {END})
    assert len(found) > 250  # all but the bytes that begin no character


def test_an_end_token_comes_only_where_an_answer_may_end(compiler):
    state = compiler.compile(Grammar("regex", "[ab]{2,3}")).begin()
    for _ in range(2):
        assert END not in allowed(state)
        assert not state.is_complete
        letters = [one for one in allowed(state) if len(opened("byte_level").token(one)) == 1]
        state.advance(letters[0])
    assert END in allowed(state)
    assert state.is_complete
    assert not state.is_finished
    state.advance(allowed(state)[-1])
    assert state.is_finished
    assert state.error is None


def test_every_end_token_of_the_model_is_allowed():
    _, compiler = compiler_of(eos_ids=(1, 2))
    state = compiler.compile(Grammar("regex", "a*")).begin()
    assert set(allowed(state)) >= {1, 2}


def test_a_model_without_end_tokens_can_follow_grammars():
    tokenizer, compiler = compiler_of(eos_ids=())
    state = compiler.compile(Grammar("regex", "a*")).begin()
    assert max(allowed(state)) == tokenizer.vocab_size + EXTRA  # made up: it has no logit
    done = compiler.compile(Grammar("regex", "abc")).begin()
    assert tokenizer.decode(write(done)) == "abc"
    assert done.is_finished


def test_a_token_that_does_not_fit_is_an_error(compiler):
    state = compiler.compile(Grammar("regex", "a")).begin()
    state.advance(END)
    assert "the grammar failed" in state.error
    assert not state.is_finished


def test_tokens_that_must_follow_are_known(compiler):
    tokenizer = opened("byte_level")
    state = compiler.compile(Grammar("regex", "The quick (red|blue)")).begin()
    assert tokenizer.decode(state.forced(10)).startswith("The quick")
    assert state.forced(1) == state.forced(10)[:1]
    ids = tokenizer.encode("The quick green", add_special=False)
    assert tokenizer.decode(state.valid_prefix(ids)).strip() == "The quick"


@pytest.mark.parametrize("kind", ["byte_level", "llama", "gemma", "unigram", "metaspace"])
def test_text_is_followed_in_every_kind_of_vocabulary(kind):
    tokenizer, compiler = compiler_of(kind, eos_ids=())
    text = "Don't panic, it is the end: "
    state = compiler.compile(Grammar("lark", f'start: "{text}" /[a-z]{{3,5}}/ "!"')).begin()
    written = tokenizer.decode(write(state))
    assert state.is_finished
    assert written.startswith(text)
    assert written.endswith("!")
    assert written[len(text) : -1].isalpha()


ANY = 'Żółta 你好 😀 {"a": [1, 2]}\n\t<|im_end|></s>'  # special tokens in it are text


@cache
def table_of(kind):
    tokenizer = opened(kind)
    return TokenTable(tokenizer, tokenizer.vocab_size, ())


@pytest.mark.parametrize("kind", ["byte_level", "llama", "gemma", "unigram"])
@given(text=st.text(max_size=12) | st.just(ANY))
def test_tokens_of_a_text_spell_exactly_its_bytes(kind, text):
    table = table_of(kind)
    ids = table(text)
    assert b"".join(table.tokens[token_id] for token_id in ids) == text.encode()
    assert set(ids).isdisjoint(table.special_token_ids)


def test_a_vocabulary_with_endless_tokens_can_be_used():
    pieces = ["a" * length for length in (1, 100, 400, 800, 1600)]
    inner = Inner(models.WordLevel(dict(zip(pieces, range(5), strict=True)), unk_token="a"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Whitespace(), decoders.ByteLevel()
    compiler = GrammarCompiler(Tokenizer(inner), 5)
    assert allowed(compiler.compile(Grammar("regex", "a*")).begin()) == [0, 1, 2, 5]


def test_special_tokens_are_placed_where_a_grammar_spells_them():
    lark = (
        'start: begin "<s>" body\n'
        'begin: "<s>"\n'
        'think[suffix="<s>"]: TEXT\n'
        'body: "<s>" "a"\n'
        'other: "<t>"\n'
        'json: %json {"const": "<s>"}'
    )
    assert insert_special_tokens(lark, {"<s>": 7}) == (
        'start: begin "<s>" body\n'
        "begin: <[7]>\n"
        "think: TEXT <[7]>\n"
        'body: "<s>" "a"\n'
        'other: "<t>"\n'
        'json: %json {"const": "<s>"}'
    )


def test_a_start_rule_gets_another_name_and_nothing_else():
    lark = (
        'start: "start" /start/ START start_2 my-start // start\n # start\n x: start | "a\\"start"'
    )
    assert rename_start(lark, "answer") == (
        'answer: "start" /start/ START start_2 my-start // start\n # start\n'
        ' x: answer | "a\\"start"'
    )


@pytest.mark.parametrize("mark", ['"\\', "/\\"])
def test_a_text_that_does_not_end_is_read_once(mark):
    """Else each of its marks would be tried as the beginning of one, which takes many minutes."""
    lark = mark * 400_000 + "\nstart: x"
    assert rename_start(lark, "answer") == lark.replace("start", "answer")


@pytest.mark.parametrize(
    ("regex", "text"),
    [("a/b", "a/b"), (r"a\/b", "a/b"), ("a\nb", "a\nb"), (r"\\/", "\\/"), ("[/]", "/")],
)
def test_a_regular_expression_is_the_same_between_slashes(compiler, regex, text):
    lark = compiler.compile(Grammar("lark", f"start: {regex_literal(regex)}"))
    for compiled in (lark, compiler.compile(Grammar("regex", regex))):
        state = compiled.begin()
        assert opened("byte_level").decode(write(state, (END,))) == text


@pytest.mark.parametrize(
    ("grammar", "most"),
    [
        (Grammar("json_object"), 0),
        (Grammar("json_schema", '{"type": "object"}'), 0),
        (schema_grammar({"properties": {"a": {"type": "null"}}}), 1),
        (Grammar("json_schema", '{"x-guidance": {"whitespace_flexible": true}}'), 100),
    ],
    ids=["object", "schema", "of TGI", "as the schema says"],
)
def test_json_is_compact_unless_its_schema_says_otherwise(compiler, grammar, most):
    state = compiler.compile(grammar).begin()
    tokenizer = opened("byte_level")
    state.advance(tokenizer.encode("{", add_special=False)[0])
    space = tokenizer.encode(" ", add_special=False)[0]
    count = 0
    while count < 100 and space in allowed(state):
        state.advance(space)
        count += 1
    assert count == most


def test_an_untrusted_grammar_never_forces_tokens():
    tokenizer = opened("byte_level")
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, (END,), is_trusted=False)
    endless = "start: a\na: /x+/ a"  # a text that is forced and has no end is never found
    for source in (endless, f'{endless}\n%llguidance {{"no_forcing": false}}'):
        compiled = compiler.compile(Grammar("lark", source))
        assert compiled.find_slow_step() is None
        assert write(compiled.begin(), most=20)
    for kind, source in (("regex", "The quick"), ("json_schema", '{"const": "The quick"}')):
        state = compiler.compile(Grammar(kind, source)).begin()
        assert state.forced(10) == []
        assert "The quick" in tokenizer.decode(write(state))


class Slow:
    """A matcher whose steps take too long from the third on."""

    def __init__(self):
        self.num_tokens = 0

    def compute_bitmask(self):
        end = time.thread_time() + probing.MAX_SECONDS * (self.num_tokens == 2)
        while time.thread_time() <= end:
            pass
        return bytes([0b110])

    def consume_token(self, token_id):
        assert token_id == 2
        self.num_tokens += 1

    def is_error(self):
        return False

    is_stopped = is_error


def test_a_grammar_whose_steps_are_slow_is_found(compiler):
    assert "its first 2 tokens" in probing.find_slow_step(Slow, [1])
    assert compiler.compile(Grammar("json_object")).find_slow_step() is None


def test_the_grammars_that_are_kept_are_known(compiler):
    assert not compiler.is_cached(Grammar("regex", "known"))
    compiler.compile(Grammar("regex", "known"))
    assert compiler.is_cached(Grammar("regex", "known"))
