"""Grammars in llama.cpp's form: what they accept as Lark, and how wrong ones are refused."""

import json

import pytest

from mindspore_serving.core.llm_messages import Generate, Grammar, RequestRefused
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.grammar.compiler import GrammarCompiler
from mindspore_serving.llm.grammar.gbnf import MAX_CHARS, MAX_RULES, to_lark
from mindspore_serving.llm.processing.answer_format import to_answer_format
from tests.frontends.openai.serving import CARD
from tests.llm.grammar.test_grammar import END, compiler_of, write

JSON = r"""
root   ::= object   # the whole answer
object ::= "{" ws ( pair ("," ws pair)* )? "}"
pair   ::= text ":" ws value
value  ::= object | text | digits |
         "[" ws (value ("," ws value)*)? "]"
text   ::= "\"" [^"\\\x00-\x1F]{0,8} "\""
digits ::= [1-9] [0-9]{0,3}
ws     ::= | " "
"""


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return compiler_of()[1]


def accepts(compiler: GrammarCompiler, source: str, text: str) -> bool:
    state = compiler.compile(Grammar("lark", to_lark(source))).begin()
    for token_id in compiler_of()[0].encode(text, add_special=False):
        if state.is_finished or not state.matcher.validate_tokens([token_id]):
            return False
        state.advance(token_id)
    return bool(state.matcher.is_accepting())


@pytest.mark.parametrize(
    ("source", "right", "wrong"),
    [
        (r'root ::= "é" [\u0041-\u005A]', ["éA", "éZ"], ["éa", "eA"]),
        (r'root ::= "\u00e9\x21"', ["é!"], ["é"]),
        (r'root ::= "\U0001F600"', ["😀"], ["😁"]),
        (r'root ::= "\[a\]" [\[\]]', ["[a][", "[a]]"], ["[a]a"]),
        (r'root ::= "\t\r\n\\\""', ['\t\r\n\\"'], ["t"]),
        ('root ::= [a-] [+&&~]', ["a+", "-&", "-~"], ["b+", "a-"]),
        ('root ::= [^a^/]', ["b", "\n"], ["a", "^", "/"]),
        ('root ::= . "x"', ["ax", "\nx", "éx"], ["x"]),
        ('root ::= a |\n  b\na ::= "1"\nb ::= "2" root?', ["1", "221"], ["12"]),
        ('root ::= fooBar baz-q{2}\nfooBar ::= "x"\nbaz-q ::= "y"', ["xyy"], ["xy"]),
        ('root ::= "(" root ")" | "."', ["((.))"], ["(."]),
        ('root ::= "a"{2,} ("b" | "c"){0,2} "#" # end', ["aa#", "aaabc#"], ["a#", "aabbb#"]),
        ('root ::= "a\nb"', ["a\nb"], ["ab"]),
    ],
)  # fmt: skip
def test_translation_accepts_the_texts_of_the_grammar(compiler, source, right, wrong) -> None:
    assert [text for text in right if not accepts(compiler, source, text)] == []
    assert [text for text in wrong if accepts(compiler, source, text)] == []


def test_random_answers_of_a_json_grammar_are_json() -> None:
    tokenizer, compiler = compiler_of()
    grammar = compiler.compile(Grammar("lark", to_lark(JSON)))
    texts = []
    for seed in range(8):
        state = grammar.begin()
        ids = write(state, [END], seed)
        if state.matcher.is_accepting():
            texts.append(tokenizer.decode(ids))
    assert texts
    assert all(isinstance(json.loads(text), dict) for text in texts)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ('root ::= "x"\nb = "y"', "Expected ::= at line 2"),
        ('root ::= ("a"', r"Expected '\)' at line 1"),
        ('root ::= a\n\na ::= "x" | yy', "'yy' not found at line 3, expected the name of a rule"),
        ('a ::= "x"', "expected a rule `root ::= ...`"),
        ('root ::= start\nstart ::= "x"', "'start' already exists: expected names"),
        ('root ::= "\\q"', r"Invalid escape sequence \\q at line 1"),
        ('root ::= "\\', "expected a character behind the backslash"),
        ('root ::= "abc', "Unexpected end of input at line 1"),
        (r'root ::= "\uD800"', r"\\uD800 is no character"),
        ("root ::= " + "(" * 5000, "nested too deeply"),
        ('root ::= "x"\n' * (MAX_RULES + 1), "257 rules, expected at most 256"),
        ('root ::= "x" #' + "x" * MAX_CHARS, "characters, expected at most 65536"),
    ],
)
def test_wrong_grammar_is_refused_with_its_line(source: str, problem: str) -> None:
    with pytest.raises(InvalidInputs, match=problem):
        to_lark(source)


@pytest.mark.parametrize("piece", ["[", '["', "\\", "[\\q", "(", "a ::= ["])
def test_broken_pieces_end_soon(piece: str) -> None:
    with pytest.raises(InvalidInputs):
        to_lark("root ::= " + piece * (60_000 // len(piece)))


def test_request_has_the_translation_or_is_refused() -> None:
    request = Generate(prompt="x", grammar=Grammar("gbnf", 'root ::= "a" [0-9]'))
    grammar = to_answer_format(request, CARD).grammar
    assert grammar is not None
    assert (grammar.kind, 'start: "a" /[0-9]/' in grammar.source) == ("lark", True)
    wrong = Generate(prompt="x", grammar=Grammar("gbnf", "root ::= b"))
    with pytest.raises(RequestRefused) as caught:
        to_answer_format(wrong, CARD)
    assert caught.value.refused.reason == "grammar"
