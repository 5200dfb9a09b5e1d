"""Messages as chat templates take them: without fields that are null, the reasoning and the
arguments of calls in the form that a template looks for.  Knows no Jinja.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mindspore_serving.errors import InvalidInputs

Message = Mapping[str, Any]

_REASONING = ("reasoning_content", "reasoning", "thinking")  # names of one field, the first wins
_READS_NULL = re.compile(r"content(?:['\"]\])?\s+is\s+(?:not\s+)?none", re.IGNORECASE)


class Arguments(dict[str, Any]):
    """Arguments of a call: an object, and where a template wants text, its JSON."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


def to_template(messages: Sequence[Message], source: str) -> list[dict[str, Any]]:
    """`messages` for the template `source`.

    A content that is null is "", unless the template looks whether it is; then the content of a
    message with calls is null if it is empty.  Raises InvalidInputs for what is no message.
    """
    if not messages:
        raise InvalidInputs("messages is empty, expected at least one message")
    reads_null = _READS_NULL.search(source) is not None
    names = [name for name in _REASONING if name in source] or _REASONING[:1]
    return [_convert(index, one, reads_null, names) for index, one in enumerate(messages)]


def _convert(
    index: int, message: Message, reads_null: bool, names: Sequence[str]
) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidInputs(
            f"messages[{index}] is of type {type(message).__name__}, expected an object"
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidInputs(f"messages[{index}] has role {role!r}, expected a name")
    found = {name: value for name, value in message.items() if value is not None}
    reasoning = next((found.pop(name) for name in _REASONING if name in found), None)
    if reasoning is not None:
        found |= dict.fromkeys(names, reasoning)
    calls = found.get("tool_calls")
    if calls:
        found["tool_calls"] = [_call(one) for one in calls]
    if not found.get("content") and (calls or "content" not in found):
        found["content"] = None if reads_null else ""
    return found


def _call(call: Any) -> Any:
    """A call, as OpenAI writes it or without "function" around its name and arguments."""
    if not isinstance(call, Mapping):
        return call
    found = {name: value for name, value in call.items() if value is not None}
    if isinstance(found.get("function"), Mapping):
        return {"type": "function", **found, "function": _call(found["function"])}
    arguments = found.get("arguments")
    if isinstance(arguments, Mapping):
        found["arguments"] = Arguments(arguments)
    return found
