"""What another server is sent for a request, and what is refused."""

import json
import subprocess
import sys
from typing import Any

import pytest

from mindspore_serving.core.llm_messages import Generate, Grammar, ToolChoice
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.upstream.options import read_options
from mindspore_serving.llm.upstream.requests import to_body

HELLO = [{"role": "user", "content": "Hello"}]


def sent(request: Generate, dialect: str = "openai", **options: Any) -> dict[str, Any]:
    found = read_options({"url": "http://far/v1", "dialect": dialect, **options})
    path, body = to_body(request, "big", found)
    assert path == ("/chat/completions" if request.messages else "/completions")
    return dict(json.loads(body))


def chat(**fields: Any) -> Generate:
    params = SamplingParams(**fields.pop("params", {}))
    return Generate(**{"messages": HELLO, "params": params, **fields})


def test_a_prompt_is_sent_unchanged() -> None:
    for prompt in ("Hello", [1, 2, 3]):
        found = sent(Generate(prompt=prompt, params=SamplingParams(max_tokens=5, temperature=0.5)))
        assert found == {
            "model": "big",
            "prompt": prompt,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "top_p": 1.0,
            "max_tokens": 5,
        }


def test_parameters_have_the_names_of_openai() -> None:
    params = {"include_stop": True, "stop": ["a"], "min_p": 0.5, "seed": 2**64 - 1, "logprobs": 2}
    found = sent(chat(params=params, priority=3), "vllm")
    assert found["include_stop_str_in_output"] is True
    assert (found["min_p"], found["priority"]) == (0.5, 3)
    assert (found["seed"], found["logprobs"], found["top_logprobs"]) == (-1, True, 2)
    found = sent(chat(params={"max_tokens": 7}), max_tokens_name="max_completion_tokens")
    assert found["max_completion_tokens"] == 7
    assert "max_tokens" not in found


@pytest.mark.parametrize("name", ["top_k", "min_p", "typical_p"])
def test_parameters_without_effect_on_greedy_sampling_are_left_out(name: str) -> None:
    value = 3 if name == "top_k" else 0.5
    assert name not in sent(chat(params={name: value, "temperature": 0}))


@pytest.mark.parametrize(
    ("fields", "name", "dialects"),
    [
        ({"params": {"top_k": 3}}, "top_k", ["openai"]),
        ({"params": {"typical_p": 0.5}}, "typical_p", ["openai", "vllm"]),
        ({"params": {"prompt_logprobs": 1}}, "prompt_logprobs", ["openai", "vllm", "ours"]),
        ({"truncate": 5}, "truncate", ["openai"]),
        ({"cache_salt": "a"}, "cache_salt", ["openai"]),
        ({"priority": 1}, "priority", ["openai"]),
        ({"chat_template": "{{ 1 }}"}, "chat_template", ["openai"]),
        ({"grammar": Grammar("regex", "a+")}, "grammar", ["openai"]),
        ({"template_options": {"enable_thinking": False}}, "template_options", ["openai"]),
        ({"template_options": {"continue_final_message": True}}, "template_options", ["openai"]),
        ({"has_prompt_tokens": True}, "has_prompt_tokens", ["openai", "vllm", "ours"]),
    ],
)
def test_fields_without_a_counterpart_are_refused_by_name(
    fields: dict[str, Any], name: str, dialects: list[str]
) -> None:
    for dialect in ("openai", "vllm", "ours"):
        if dialect in dialects:
            with pytest.raises(InvalidField) as error:
                sent(chat(**fields), dialect)
            assert error.value.field == name
        else:
            assert sent(chat(**fields), dialect)


def test_a_raw_prompt_needs_a_number_of_tokens() -> None:
    with pytest.raises(InvalidField, match="max_tokens is not set"):
        sent(Generate(prompt="a", params=SamplingParams(max_tokens=None)))
    assert "max_tokens" not in sent(chat(params={"max_tokens": None}))


def test_forms_of_answers_and_tools_are_passed_on() -> None:
    schema = {"type": "object"}
    found = sent(chat(grammar=Grammar("json_schema", json.dumps(schema))))
    assert found["response_format"]["json_schema"]["schema"] == schema
    assert sent(chat(grammar=Grammar("lark", "start: A")), "ours")["structured_outputs"] == {
        "grammar": "start: A"
    }
    tools = [{"type": "function", "function": {"name": "look"}}]
    choice = ToolChoice(mode="required", name="look", parallel=False)
    found = sent(chat(tools=tools, tool_choice=choice))
    assert (found["tools"], found["parallel_tool_calls"]) == (tools, False)
    assert found["tool_choice"] == {"type": "function", "function": {"name": "look"}}


def test_template_options_have_the_places_of_openai() -> None:
    effort = {"reasoning_effort": "none", "enable_thinking": False}
    assert sent(chat(template_options=effort))["reasoning_effort"] == "none"
    found = sent(chat(template_options={**effort, "add_generation_prompt": False}), "vllm")
    assert found["chat_template_kwargs"] == {"enable_thinking": False}
    assert found["add_generation_prompt"] is False


def test_calls_of_earlier_turns_get_ids_and_arguments_as_text() -> None:
    function = {"name": "look", "arguments": {"at": 1}}
    calls = [{"type": "function", "function": function}] * 2
    messages = [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": calls, "reasoning_content": "Hm"},
        {"role": "tool", "content": "a", "name": "look"},
        {"role": "tool", "content": "b", "name": "look"},
    ]
    _, said, *results = sent(Generate(messages=messages))["messages"]
    assert [one["id"] for one in said["tool_calls"]] == ["call_1", "call_2"]
    assert said["tool_calls"][0]["function"]["arguments"] == '{"at":1}'
    assert "reasoning_content" not in said
    assert [(one["tool_call_id"], "name" in one) for one in results] == [
        ("call_1", False),
        ("call_2", False),
    ]


def test_an_upstream_needs_no_library_of_language_models() -> None:
    source = """
import sys
for name in ("tokenizers", "jinja2", "llguidance", "openvino", "safetensors", "tqdm"):
    sys.modules[name] = None
import mindspore_serving.cli.servables
import mindspore_serving.worker.language
import mindspore_serving.worker.loading
import mindspore_serving.llm.upstream.engine
"""
    subprocess.run([sys.executable, "-c", source], check=True)


def test_structural_tags_are_a_response_format() -> None:
    source = '{"structures": [], "triggers": ["<f="]}'
    body = sent(chat(grammar=Grammar("structural_tag", source)), "vllm")
    assert body["response_format"] == {
        "type": "structural_tag",
        "structures": [],
        "triggers": ["<f="],
    }
