"""Grammars whose compilation recurses deeply, which once ended the process."""

import json
import threading

import pytest

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.llm.grammar.deep_stack import call_with_deep_stack
from tests.llm.grammar.test_grammar import compiler_of


@pytest.fixture(scope="module")
def compiler():
    return compiler_of()[1]


def test_a_long_chain_of_references_is_compiled(compiler):
    linked = {f"d{i}": {"properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(1100)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**linked, "d1100": {}}}
    source = json.dumps(schema, separators=(",", ":"))
    assert compiler.compile(Grammar("json_schema", source))


def test_a_long_chain_of_rules_is_compiled(compiler):
    rules = [f'a{i}: "x" a{i + 1}' for i in range(3000)]
    source = "\n".join(["start: a0", *rules, 'a3000: "y"'])
    assert compiler.compile(Grammar("lark", source))


def test_plain_calls_do_not_wait_for_slow_calls():
    begun, end = threading.Event(), threading.Event()

    def slow():
        begun.set()
        return end.wait(60)

    thread = threading.Thread(target=call_with_deep_stack, args=(slow,), kwargs={"is_slow": True})
    thread.start()
    try:
        assert begun.wait(60)
        assert call_with_deep_stack(lambda: "beside it") == "beside it"
    finally:
        end.set()
        thread.join()
