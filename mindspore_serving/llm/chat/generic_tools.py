"""Tools for models whose chat template has no format for them.

A system message describes the tools, turns show examples, and calls and results are texts of
messages.  Knows no Jinja.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mindspore_serving.llm.chat.messages import Message
from mindspore_serving.llm.chat.tool_formats import GENERIC, TOOL_FORMATS, Tools, function_of

_BEGIN, _END = TOOL_FORMATS[GENERIC].begin, TOOL_FORMATS[GENERIC].end
_FIELDS = ("name", "description", "parameters")
_HEAD = "You can call these functions:"
_FORM = f"""To call a function, answer with its name and arguments as JSON in this form:
{_BEGIN}
{{"name": "...", "arguments": {{...}}}}
{_END}"""
_NUM_EXAMPLES = 2  # without examples small models make no calls, and more do not help
_GREETING = (
    {"role": "user", "content": "Hello!"},
    {"role": "assistant", "content": "Hello! How can I help you?"},
)


def with_tools(
    messages: Sequence[Message], tools: Tools, *, has_system: bool, is_free: bool
) -> list[Message]:
    """Return `messages` for a template without tools.

    The tools are described in a system message; in the first user's message if the template shows
    no system message.  If the model `is_free` to call them, an answer in words and some calls
    follow as examples; where a call is forced, models would only copy those.
    """
    converted = _as_texts(messages)
    if not tools:
        return converted
    examples = [*_GREETING, *_examples(tools)] if is_free else []
    instructions = {"role": "system", "content": _describe(tools)}
    if has_system:
        system = [converted.pop(0)] if converted and converted[0].get("role") == "system" else []
        return [_join([*system, instructions]), *examples, *converted]
    converted = [*examples, *converted]
    user = [converted.pop(0)] if converted and converted[0].get("role") == "user" else []
    return [{**_join([instructions, *user]), "role": "user"}, *converted]


def _join(messages: Sequence[Message]) -> Message:
    """Join the contents of several messages to one."""
    contents = [message.get("content") for message in messages]
    return {**messages[0], "content": _joined([c for c in contents if c], "\n\n")}


def _joined(contents: Sequence[Any], between: str) -> Any:
    """Join contents to a text; to parts if there are images among them."""
    if not any(map(_has_images, contents)):
        return between.join(filter(None, map(_text, contents)))
    parts: list[Any] = []
    for content in contents:
        parts += [_part(between)] if parts and between else []
        parts += content if _has_images(content) else [_part(_text(content))]
    return parts


def _has_images(content: Any) -> bool:
    return isinstance(content, list) and any(
        isinstance(part, Mapping) and part.get("type") == "image" for part in content
    )


def _part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _describe(tools: Tools) -> str:
    return "\n".join([_HEAD, *map(_tool, tools), "", _FORM])


def _tool(tool: Mapping[str, Any]) -> str:
    function = function_of(tool)
    shown = {name: function[name] for name in _FIELDS if function.get(name)}
    return json.dumps(shown, ensure_ascii=False)


def _examples(tools: Tools) -> list[Message]:
    examples: list[Message] = []
    for tool in tools[:_NUM_EXAMPLES]:
        function, blanks = function_of(tool), _blanks(tool)
        request = function.get("description") or function["name"]
        request = (
            ": ".join([request, ", ".join(f"{name} ..." for name in blanks)]) if blanks else request
        )
        examples.append({"role": "user", "content": request})
        examples.append({"role": "assistant", "content": _write_call(function["name"], blanks)})
    return examples


def _blanks(tool: Mapping[str, Any]) -> dict[str, str]:
    """Return the required arguments of a call, without values."""
    parameters = function_of(tool).get("parameters")
    required = parameters.get("required") if isinstance(parameters, Mapping) else None
    return {str(name): "..." for name in required} if isinstance(required, list) else {}


def _write_call(name: str, arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{_BEGIN}\n{call}\n{_END}"


def _as_texts(messages: Sequence[Message]) -> list[Message]:
    """Return calls as texts of the assistant, and results as messages of a user.

    Consecutive results become one message, as many templates require users and assistants to take
    turns.
    """
    converted: list[Message] = []
    was_result = False
    for message in messages:
        is_result = isinstance(message, Mapping) and message.get("role") == "tool"
        if is_result:
            content = message.get("content") or ""
            result = _joined(["<tool_response>\n", content, "\n</tool_response>"], "")
            if was_result:
                result = _joined([converted.pop()["content"], result], "\n")
            converted.append({"role": "user", "content": result})
        else:
            converted.append(_with_calls(message))
        was_result = is_result
    return converted


def _with_calls(message: Message) -> Message:
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    if not calls:
        return message
    texts = filter(None, [_text(message.get("content")), *map(_call, calls)])
    other_fields = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**other_fields, "content": "\n".join(texts)}


def _call(call: Mapping[str, Any]) -> str:
    function = call.get("function", call)
    return _write_call(function.get("name"), function.get("arguments") or {})


def _text(content: Any) -> str:
    """Return the text of a content, which may come in parts."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return "" if content is None else str(content)
