"""Messages in the form that chat templates take.

Null fields are dropped; reasoning and arguments of calls get the form that the template reads.
Knows no Jinja.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mindspore_serving.errors import InvalidField, InvalidInputs

Message = Mapping[str, Any]

ROLES = ("system", "user", "assistant", "tool")
# Roles that templates show without naming them: ChatGLM's and Llama's for results of tools.
_OTHER_ROLES = frozenset({"developer", "function", "observation", "ipython"})

_REASONING = ("reasoning_content", "reasoning", "thinking")  # names of one field, the first wins
_READS_NULL = re.compile(r"content(?:['\"]\])?\s+is\s+(?:not\s+)?none", re.IGNORECASE)


class Arguments(dict[str, Any]):
    """Arguments of a call: an object, and its JSON where a template uses it as a string."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


def to_template(messages: Sequence[Message], source: str) -> list[dict[str, Any]]:
    """Return `messages` for the template `source`.

    Null content becomes "", unless the template tests for null; then a message with calls and
    without text has null content.  Raises InvalidInputs for an entry that is no message, and
    InvalidField for a role that neither chats nor the template have.
    """
    if not messages:
        raise InvalidInputs("messages is empty, expected at least one message")
    reads_null = _READS_NULL.search(source) is not None
    names = [name for name in _REASONING if name in source] or _REASONING[:1]
    for index, message in enumerate(messages):
        _check_role(index, message, source)
    return [_convert(message, reads_null, names) for message in messages]


def _check_role(index: int, message: Message, source: str) -> None:
    if not isinstance(message, Mapping):
        raise InvalidInputs(
            f"messages[{index}] is of type {type(message).__name__}, expected an object"
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidInputs(f"messages[{index}] has role {role!r}, expected a name")
    is_named = f"'{role}'" in source or f'"{role}"' in source
    if role not in ROLES and role not in _OTHER_ROLES and not is_named:
        accepted = f"expected one of {', '.join(ROLES)}"
        raise InvalidField(f"messages[{index}].role", f'is "{role[:64]}", {accepted}')


def _convert(message: Message, reads_null: bool, names: Sequence[str]) -> dict[str, Any]:
    """Return one message for the template."""
    converted = {name: value for name, value in message.items() if value is not None}
    reasoning = next((converted.pop(name) for name in _REASONING if name in converted), None)
    if reasoning is not None:
        converted |= dict.fromkeys(names, reasoning)
    calls = converted.get("tool_calls")
    if calls:
        converted["tool_calls"] = [_call(call) for call in calls]
    if not converted.get("content") and (calls or "content" not in converted):
        converted["content"] = None if reads_null else ""
    return converted


def _call(call: Any) -> Any:
    """Return a call, in OpenAI's form or without "function" around its name and arguments."""
    if not isinstance(call, Mapping):
        return call
    fields = {name: value for name, value in call.items() if value is not None}
    if isinstance(fields.get("function"), Mapping):
        return {"type": "function", **fields, "function": _call(fields["function"])}
    arguments = fields.get("arguments")
    if isinstance(arguments, Mapping):
        fields["arguments"] = Arguments(arguments)
    return fields
