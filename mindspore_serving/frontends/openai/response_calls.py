"""Calls of tools and their results among the input items of a response, as parts of a chat."""

import msgspec

from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.custom_tools import to_arguments
from mindspore_serving.frontends.chat.messages import CalledFunction, ChatMessage, ToolCall
from mindspore_serving.frontends.openai.response_decoding import read
from mindspore_serving.frontends.openai.response_requests import (
    BuiltInCallItem,
    BuiltInOutputItem,
    CallItem,
    CustomCallItem,
    OutputItem,
)
from mindspore_serving.frontends.openai.response_tools import (
    CUSTOM,
    FUNCTION,
    NAMES,
    CallKind,
    full_name,
)


def add_call(message: ChatMessage, kind: CallKind, path: str, raw: bytes) -> None:
    """Add a call to the assistant's message, as that of the function that the model saw."""
    if kind is FUNCTION:
        item = read(path, raw, CallItem)
        name, arguments, call_id = item.name, item.arguments, item.call_id
        name = full_name(item.namespace or "", name)
    elif kind is CUSTOM:
        custom = read(path, raw, CustomCallItem)
        name = full_name(custom.namespace or "", custom.name)
        arguments, call_id = to_arguments(custom.input), custom.call_id
    else:
        built_in = read(path, raw, BuiltInCallItem)
        name, call_id = NAMES[kind.item], _call_id(path, built_in)
        action = getattr(built_in, kind.argument)
        if action is None:
            raise InvalidField(f"{path}.{kind.argument}", "is missing")
        arguments = msgspec.json.encode(action).decode()
    message.tool_calls = message.tool_calls or []
    message.tool_calls.append(ToolCall(CalledFunction(name, arguments), call_id, "function"))


def to_result(kind: CallKind, path: str, raw: bytes) -> ChatMessage:
    """Return the message with the output of a call."""
    if kind in (FUNCTION, CUSTOM):
        item = read(path, raw, OutputItem)
        return ChatMessage(role="tool", content=item.output, tool_call_id=item.call_id)
    built_in = read(path, raw, BuiltInOutputItem)
    output = built_in.output
    if output is None:
        output = built_in.status or ""
    elif not isinstance(output, str):
        output = msgspec.json.encode(output).decode()
    return ChatMessage(role="tool", content=output, tool_call_id=_call_id(path, built_in))


def _call_id(path: str, item: BuiltInCallItem | BuiltInOutputItem) -> str:
    name = item.call_id or item.id
    if name is None:
        raise InvalidField(f"{path}.call_id", "is missing")
    return name
