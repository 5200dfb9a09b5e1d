"""Tools for models whose chat template has no form for them: described in a system message, with
turns as examples; calls and results as texts of messages.  Knows no Jinja.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mindspore_serving.llm.chat.messages import Message
from mindspore_serving.llm.chat.tool_formats import GENERIC, TOOL_FORMATS, Tools, function_of

_BEGIN, _END = TOOL_FORMATS[GENERIC].begin, TOOL_FORMATS[GENERIC].end
_SHOWN = ("name", "description", "parameters")
_HEAD = "You can call these functions:"
_FORM = f"""To call a function, answer with its name and arguments as JSON in this form:
{_BEGIN}
{{"name": "...", "arguments": {{...}}}}
{_END}"""
_NUM_EXAMPLES = 2  # small models call nothing without them, and more do not help
_GREETING = (
    {"role": "user", "content": "Hello!"},
    {"role": "assistant", "content": "Hello! How can I help you?"},
)


def with_tools(
    messages: Sequence[Message], tools: Tools, *, has_system: bool, is_free: bool
) -> list[Message]:
    """`messages` as a template without tools takes them.

    First what `tools` there are: in a system message, or, for a template that shows none, in what a
    user says first.  If the model `is_free` to call them, an answer in words and some calls follow
    as examples: where a call is forced anyway they are only copied.
    """
    found = _as_texts(messages)
    if not tools:
        return found
    examples = [*_GREETING, *_examples(tools)] if is_free else []
    told = {"role": "system", "content": _describe(tools)}
    if has_system:
        own = [found.pop(0)] if found and found[0].get("role") == "system" else []
        return [_joined([*own, told]), *examples, *found]
    found = [*examples, *found]
    user = [found.pop(0)] if found and found[0].get("role") == "user" else []
    return [{**_joined([told, *user]), "role": "user"}, *found]


def _joined(messages: Sequence[Message]) -> Message:
    """One message with the texts of all of them."""
    text = "\n\n".join(filter(None, [_text(one.get("content")) for one in messages]))
    return {**messages[0], "content": text}


def _describe(tools: Tools) -> str:
    return "\n".join([_HEAD, *map(_tool, tools), "", _FORM])


def _tool(tool: Mapping[str, Any]) -> str:
    function = function_of(tool)
    shown = {name: function[name] for name in _SHOWN if function.get(name)}
    return json.dumps(shown, ensure_ascii=False)


def _examples(tools: Tools) -> list[Message]:
    found: list[Message] = []
    for tool in tools[:_NUM_EXAMPLES]:
        function, blanks = function_of(tool), _blanks(tool)
        wish = function.get("description") or function["name"]
        wish = ": ".join([wish, ", ".join(f"{name} ..." for name in blanks)]) if blanks else wish
        found.append({"role": "user", "content": wish})
        found.append({"role": "assistant", "content": _written(function["name"], blanks)})
    return found


def _blanks(tool: Mapping[str, Any]) -> dict[str, str]:
    """The arguments that a call must have, without values."""
    parameters = function_of(tool).get("parameters")
    required = parameters.get("required") if isinstance(parameters, Mapping) else None
    return {str(name): "..." for name in required} if isinstance(required, list) else {}


def _written(name: str, arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{_BEGIN}\n{call}\n{_END}"


def _as_texts(messages: Sequence[Message]) -> list[Message]:
    """Calls as the assistant's text, their results as what a user says: those that follow one
    another in one message, for many templates want users and assistants in turn.
    """
    found: list[Message] = []
    was_result = False
    for message in messages:
        is_result = isinstance(message, Mapping) and message.get("role") == "tool"
        if is_result:
            text = f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>"
            if was_result:
                text = f"{found.pop()['content']}\n{text}"
            found.append({"role": "user", "content": text})
        else:
            found.append(_with_calls(message))
        was_result = is_result
    return found


def _with_calls(message: Message) -> Message:
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    if not calls:
        return message
    texts = filter(None, [_text(message.get("content")), *map(_call, calls)])
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": "\n".join(texts)}


def _call(call: Mapping[str, Any]) -> str:
    function = call.get("function", call)
    return _written(function.get("name"), function.get("arguments") or {})


def _text(content: Any) -> str:
    """The text of a content, which may come in parts."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return "" if content is None else str(content)
