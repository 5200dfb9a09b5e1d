"""Messages as chat templates take them."""

import pytest

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"at": [1, {"x": null}]}'},
}


def told(web, *messages):
    answer = web.chat(messages=messages)
    assert answer.status == 200, answer.body
    return web.sent.messages


def test_every_role_is_taken_and_templates_see_those_they_know(web):
    roles = ["developer", "system", "user", "assistant", "tool", "function"]
    seen = told(web, *({"role": role, "content": role} for role in roles))
    assert [one["role"] for one in seen] == [
        "system",
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
    ]
    assert [one["content"] for one in seen] == roles


def test_text_parts_are_lines(web):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert told(web, {"role": "user", "content": parts}) == [{"role": "user", "content": "a\nb"}]


def test_a_refusal_is_text(web):
    parts = [{"type": "refusal", "refusal": "no"}]
    seen = told(
        web, {"role": "assistant", "content": parts}, {"role": "assistant", "refusal": "no"}
    )
    assert [one["content"] for one in seen] == ["no", "no"]


def test_a_call_and_its_result_go_round(web):
    seen = told(
        web,
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "r"},
    )
    function = {"name": "look", "arguments": {"at": [1, {"x": None}]}}
    assert seen[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }
    assert seen[2] == {"role": "tool", "tool_call_id": "call_1", "content": "r", "name": "look"}


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("", {}),
        (None, {}),
        ("{}", {}),
        ({"a": 1}, {"a": 1}),
        ('{"a": ', '{"a": '),
        ("[1]", "[1]"),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_arguments_are_objects_where_they_can_be(web, given, seen):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": given}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert told(web, message)[0]["tool_calls"][0]["function"]["arguments"] == seen


def test_arguments_that_are_too_deep_are_refused(web):
    text = '{"a":' * 150 + "1" + "}" * 150
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
    answer = web.chat(messages=[{"role": "assistant", "tool_calls": [call]}])
    assert answer.error["param"] == "messages[0].tool_calls[0].function.arguments"


def test_function_call_is_read_as_a_tool_call(web):
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    (seen,) = told(web, old)
    assert seen["tool_calls"] == [
        {"type": "function", "function": {"name": "f", "arguments": {}}},
    ]


def test_names_and_reasoning_are_kept(web):
    seen = told(
        web,
        {"role": "user", "content": "q", "name": "ann"},
        {"role": "assistant", "content": "a", "reasoning_content": "r"},
        {"role": "assistant", "content": "a", "reasoning": "s"},
    )
    assert seen[0]["name"] == "ann"
    assert [one.get("reasoning_content") for one in seen] == [None, "r", "s"]
