"""Requests before the engine, and its outputs behind it, chunk by chunk."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import (
    Chunk,
    Finished,
    Generate,
    Grammar,
    RequestRefused,
    Started,
    Tokenize,
    ToolCallDelta,
    ToolChoice,
    to_refused,
)
from mindspore_serving.core.sampling_params import FinishReason, Generated, SamplingParams
from mindspore_serving.errors import InvalidField, InvalidInputs, Overloaded, ServingError
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.chat.tool_formats import GENERIC
from mindspore_serving.llm.engine.adapters import AdapterNames
from mindspore_serving.llm.processing.answer_format import (
    AnswerFormat,
    AnswerParser,
    to_answer_format,
)
from mindspore_serving.llm.processing.output_processor import OutputProcessor
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.serving.generation import GenerationEvents
from mindspore_serving.llm.serving.recording import GenerationRecorder
from tests.frontends.openai.serving import CARD
from tests.llm.tokenizers_trained import opened

HI = [{"role": "user", "content": "Hi"}]
LOOK = {"type": "function", "function": {"name": "look", "strict": True}}
HERMES = replace(CARD, tool_format="hermes", reasoning_format="think")
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ tools | tojson }}"


@pytest.fixture(scope="module")
def tokenizer():
    return opened("byte_level")


@pytest.fixture(scope="module")
def processor(tokenizer):
    card = replace(HERMES, vocab_size=tokenizer.vocab_size, can_embed=True)
    return Processor(tokenizer, ChatTemplate(TEMPLATE), card, AdapterNames(("tuned",)).find)


# --- the system message of the operator -------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (HI, "<system>Be kind.<user>Hi"),
        ([{"role": "system", "content": "Mine."}, *HI], "<system>Mine.<user>Hi"),
        ([{"role": "developer", "content": "Mine."}, *HI], "<developer>Mine.<user>Hi"),
    ],
)
def test_a_conversation_without_a_system_message_gets_the_operators(messages, text, tokenizer):
    card = replace(CARD, vocab_size=tokenizer.vocab_size, system_message="Be kind.")
    template = ChatTemplate(TEMPLATE.partition("{{ tools")[0])
    processor = Processor(tokenizer, template, card)
    prepared = processor.prepare(Generate(messages=messages))
    assert tokenizer.decode(prepared.prompt_ids) == text


# --- the format of an answer ------------------------------------------------------------------


def chat(**fields):
    return Generate(messages=HI, parse_output=True, **fields)


def test_the_answer_to_a_request_without_parsing_is_left_unchanged():
    grammar = Grammar("regex", "a+")
    request = Generate(messages=HI, tools=[LOOK], grammar=grammar)
    assert to_answer_format(request, HERMES) == AnswerFormat([LOOK], grammar)
    assert not to_answer_format(request, HERMES).shows_special_tokens


@pytest.mark.parametrize(
    ("fields", "tools", "kind", "is_parsed"),
    [
        ({}, [], None, True),  # of reasoning
        ({"tools": [LOOK]}, [LOOK], "lark", True),
        ({"tools": [LOOK], "tool_choice": ToolChoice(mode="none")}, [], None, True),
        ({"tools": [LOOK], "tool_choice": ToolChoice(mode="required")}, [LOOK], "lark", True),
        ({"grammar": Grammar("json_object")}, [], "lark", True),
    ],
)
def test_tools_and_reasoning_decide_how_an_answer_is_read(fields, tools, kind, is_parsed):
    found = to_answer_format(chat(**fields), HERMES)
    assert (found.tools, found.is_parsed) == (tools, is_parsed)
    assert found.tool_format == ("hermes" if tools else "")
    assert (found.grammar.kind if found.grammar else None) == kind


@pytest.mark.parametrize(
    ("fields", "is_on", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"tool_choice": ToolChoice(mode="none")}, True, False),
        ({"tool_choice": ToolChoice(mode="required")}, True, False),
        ({"grammar": Grammar("json_object")}, True, False),
    ],
)
def test_calls_without_markers_are_read_of_auto_alone(fields, is_on, expected):
    card = replace(HERMES, unmarked_calls=is_on)
    assert to_answer_format(chat(tools=[LOOK], **fields), card).unmarked is expected


def test_without_tools_and_reasoning_nothing_is_parsed():
    grammar = Grammar("json_object")
    found = to_answer_format(chat(grammar=grammar), CARD)
    assert (found.grammar, found.is_parsed, found.shows_special_tokens) == (grammar, False, False)


@pytest.mark.parametrize(
    ("fields", "card", "reason", "field"),
    [
        ({"tools": [LOOK]}, CARD, "input", "tool_choice"),
        ({"tools": [LOOK], "grammar": Grammar("json_schema", "[")}, HERMES, "grammar", ""),
        ({"grammar": Grammar("json_schema", "{")}, HERMES, "grammar", ""),
    ],
)
def test_fields_that_exclude_each_other_are_refused(fields, card, reason, field):
    with pytest.raises(InvalidInputs) as caught:
        to_answer_format(chat(**fields), card)
    refused = to_refused(caught.value)
    assert (refused.reason, refused.field) == (reason, field)


# --- before the engine ------------------------------------------------------------------------


def test_a_prompt_is_prepared_with_all_that_the_engine_wants(processor, tokenizer):
    request = Generate(prompt="Hello", priority=3, tenant="a", cache_salt="s", truncate=2)
    prepared = processor.prepare(request)
    assert prepared.text == "Hello"
    assert prepared.prompt_ids == tokenizer.encode("Hello", True)[-2:]
    assert prepared.params is request.params
    assert prepared.options == {
        "priority": 3,
        "tenant": "a",
        "cache_salt": "s",
        "grammar": None,
        "continues": True,
    }
    assert processor.prepare(Generate(prompt=[5, 6], adapter="tuned")).adapter == "tuned"


def test_a_chat_sees_its_tools_without_fields_no_model_reads(processor):
    prepared = processor.prepare(chat(tools=[LOOK]))
    head, _, tools = prepared.text.partition("[")
    assert head == "<user>Hi"
    function = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    assert json.loads(f"[{tools}") == [{"type": "function", "function": function}]
    assert prepared.params.skip_special_tokens is False
    assert not prepared.options["continues"]


@pytest.mark.parametrize("mode", ["none", "auto", "required"])
@pytest.mark.parametrize("form", ["hermes", GENERIC])
def test_a_chat_has_the_tokens_that_are_counted(mode, form, tokenizer):
    size = {"vocab_size": tokenizer.vocab_size, "max_model_len": 1024}
    card = replace(HERMES, tool_format=form, **size)
    processor = Processor(tokenizer, ChatTemplate(TEMPLATE), card)
    fields = {"tools": [LOOK], "tool_choice": ToolChoice(mode=mode)}
    counted = processor.tokenize(Tokenize(messages=HI, **fields), OutputProcessor(None))
    assert counted.text == processor.prepare(chat(**fields)).text


def test_a_forced_call_has_a_compiled_grammar(processor):
    request = chat(tools=[LOOK], tool_choice=ToolChoice(mode="required", name="look"))
    prepared = processor.prepare(request)
    assert prepared.options["grammar"].grammar == prepared.answer_format.grammar
    assert '\\"look\\"' in prepared.answer_format.grammar.source


@pytest.mark.parametrize("asked", [(8, False), (9, True), (2**40, True), (None, False)])
def test_a_length_of_answer_beyond_the_context_is_capped(processor, asked):
    max_tokens, is_capped = asked
    params = SamplingParams(max_tokens=max_tokens)
    prepared = processor.prepare(Generate(prompt=[1] * 120, params=params))
    assert prepared.is_capped is is_capped


@pytest.mark.parametrize(
    ("request_", "reason", "field"),
    [
        (Generate(prompt=""), "empty", ""),
        (Generate(prompt=[1] * 128), "context", ""),
        (Generate(prompt="a", truncate=0), "input", "truncate"),
        (Generate(prompt="a", adapter="none"), "input", "adapter"),
        (Generate(prompt="a", grammar=Grammar("regex", "(")), "grammar", ""),
        (Generate(messages=[{"role": 5}]), "template", ""),
        (chat(tools=[{"type": "function"}]), "input", "tools"),
    ],
)  # fmt: skip
def test_requests_that_cannot_be_prepared_are_refused_with_the_field(
    processor, request_, reason, field
):
    with pytest.raises(InvalidInputs) as caught:
        processor.prepare(request_)
    refused = to_refused(caught.value)
    assert (refused.reason, refused.field) == (reason, field)
    if reason == "context":
        assert (refused.num_prompt_tokens, refused.max_model_len) == (len(request_.prompt), 128)


def test_a_chat_without_a_template_is_refused_with_advice(tokenizer):
    with pytest.raises(RequestRefused, match=r"add chat_template\.jinja"):
        Processor(tokenizer, None, CARD).prepare(chat())


def test_errors_are_refusals_unless_the_model_failed():
    assert to_refused(InvalidField("top_p", "is 3")).field == "top_p"
    assert to_refused(Overloaded("full")).reason == "overloaded"
    assert to_refused(InvalidInputs("no")).field == ""
    assert to_refused(ServingError("lost")) is None


# --- behind the engine ------------------------------------------------------------------------

ANSWER = (
    "<think>\nhm\n</think>\n\nI look."
    '<tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>'
    '<tool_call>{"name": "look"}</tool_call>\nDone.'
)
FORMAT = AnswerFormat([LOOK], None, "hermes", "think", is_parsed=True)


def parse(pieces, answer_format=FORMAT, reason="stop"):
    parser = AnswerParser(answer_format)
    chunks = [
        Chunk(0, piece, (5,), None, reason if place == len(pieces) - 1 else None)
        for place, piece in enumerate(pieces)
    ]
    found = [one for chunk in chunks for one in parser.parse(chunk, [(chunk.text, 1)])]
    return found, parser.num_reasoning_tokens


def test_an_answer_at_once_is_chunks_in_the_order_of_the_text():
    first, second = parse([ANSWER])[0]
    assert (first.reasoning, first.text) == ("hm", "I look.")
    assert first.tool_calls == (
        ToolCallDelta(0, "look"),
        ToolCallDelta(0, None, '{"at": 1}'),
        ToolCallDelta(1, "look"),
        ToolCallDelta(1, None, "{}"),
    )
    assert (second.text, second.tool_calls) == ("\nDone.", ())
    assert (first.token_ids, second.token_ids) == ((5,), ())
    assert (first.finish_reason, second.finish_reason) == (None, "tool_calls")


@given(st.data())
def test_chunks_are_the_same_together_however_the_text_was_cut(data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ANSWER)), max_size=8)))
    pieces = [ANSWER[a:b] for a, b in zip([0, *cuts], [*cuts, len(ANSWER)], strict=True)]
    whole, found = parse([ANSWER])[0], parse(pieces)[0]
    for name in ("reasoning", "text"):
        told = ["".join(getattr(one, name) for one in chunks) for chunks in (whole, found)]
        assert told[0] == told[1]
    calls = [one for chunk in found for one in chunk.tool_calls]
    assert [one.name for one in calls if one.name] == ["look", "look"]
    text = ["".join(one.arguments for one in calls if one.index == index) for index in (0, 1)]
    assert text == ['{"at": 1}', "{}"]
    assert found[-1].finish_reason == "tool_calls"


def test_only_the_first_call_counts_without_parallel_calls():
    one = AnswerFormat([LOOK], None, "hermes", "think", is_parsed=True, parallel=False)
    calls = [call for chunk in parse([ANSWER], one)[0] for call in chunk.tool_calls]
    assert {call.index for call in calls} == {0}


def test_tokens_count_as_reasoning_up_to_the_first_that_is_none():
    pieces = ["<think>", "h", "m", "</think>", "\n", "I", " look."]
    assert parse(pieces)[1] == 5
    assert parse(["I", " look."])[1] == 0
    assert parse(["<think>h", "m"], reason="length")[1] == 2


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_generation_parses_each_of_its_answers(processor, is_stream):
    params = SamplingParams(n=2, seed=1)
    request = chat(tools=[LOOK], params=params, is_stream=is_stream)
    answer = GenerationEvents("7", request, OutputProcessor(None), GenerationRecorder())
    assert [one for one, _ in answer.prepare(request, processor)] == ["7"]
    events = answer.take("7", Started(3, 1))
    for index, texts in enumerate((["<think>h", "m</think>", "Yes"], ["N", "o"])):
        for place, text in enumerate(texts):
            reason = FinishReason.STOP if place == len(texts) - 1 else None
            events += answer.take("7", Generated(index, (place,), text, None, reason))
    chunks = [event for event in events if isinstance(event, Chunk)]
    shown = [
        ["".join(getattr(one, name) for one in chunks if one.index == index) for index in (0, 1)]
        for name in ("reasoning", "text")
    ]
    assert shown == [["hm", ""], ["Yes", "No"]]
    assert len(chunks) == (5 if is_stream else 2)
    assert answer.is_done
    assert isinstance(events[-1], Finished)
    assert (events[-1].num_generated_tokens, events[-1].num_reasoning_tokens) == (5, 2)
