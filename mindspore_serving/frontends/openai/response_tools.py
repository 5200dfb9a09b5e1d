"""Kinds of tools of /v1/responses, and the items that their calls become.

The model sees functions only: each kind of tool that the client runs is a row with the function
that stands for it.  Kinds that only OpenAI's server can run are not shown to the model.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.custom_tools import to_schema
from mindspore_serving.frontends.chat.tools import Function
from mindspore_serving.frontends.chat.tools import Tool as ChatTool
from mindspore_serving.frontends.openai.response_decoding import read
from mindspore_serving.frontends.openai.response_requests import ResponseTool

Object = dict[str, Any]

MCP_TYPE = "mcp"
_MAX_NAME = 64  # characters of a function's name
_MAX_NESTED = 2  # levels of namespaces


@dataclass(frozen=True, slots=True)
class CallKind:
    """Form of the calls of one kind of tool.

    `item` is the type of the item, `argument` its field with the arguments, which `deltas` stream
    under that name ("" for kinds that have no deltas).  `is_object` says that the field is an
    object, and `default` has the fields that the model may leave out.
    """

    item: str
    prefix: str  # of the item's id
    argument: str
    deltas: str = ""
    is_object: bool = False
    default: Mapping[str, Any] = field(default_factory=dict)

    @property
    def output(self) -> str:
        """Type of the item with the result."""
        return f"{self.item}_output"


FUNCTION = CallKind("function_call", "fc", "arguments", "function_call_arguments")
CUSTOM = CallKind("custom_tool_call", "ctc", "input", "custom_tool_call_input")
MCP = CallKind("mcp_call", "mcp", "arguments", "mcp_call_arguments")  # its namespace is a server
_TEXT, _MILLISECONDS = {"type": "string"}, {"type": "integer", "description": "Timeout in ms"}
_WORDS = {"type": "array", "items": _TEXT}


def _function(name: str, description: str, required: Sequence[str], **properties: Any) -> Function:
    schema = {"type": "object", "properties": properties, "required": [*required]}
    return Function(name, description, {**schema, "additionalProperties": False})


BUILT_IN: dict[str, tuple[CallKind, Function]] = {  # by the type of the tool: the client runs it
    "local_shell": (
        CallKind(
            "local_shell_call",
            "lsh",
            "action",
            is_object=True,
            default={"type": "exec", "command": [], "env": {}},
        ),
        _function(
            "local_shell",
            "Run a command on the user's computer.",
            ["command"],
            command=_WORDS | {"description": "The program and its arguments"},
            working_directory=_TEXT,
            timeout_ms=_MILLISECONDS,
        ),
    ),
    "shell": (
        CallKind("shell_call", "sh", "action", is_object=True, default={"commands": []}),
        _function(
            "shell",
            "Run commands in a shell.",
            ["commands"],
            commands=_WORDS,
            timeout_ms=_MILLISECONDS,
            max_output_length={"type": "integer", "description": "Characters of each output"},
        ),
    ),
    "apply_patch": (
        CallKind(
            "apply_patch_call",
            "apc",
            "operation",
            is_object=True,
            default={"type": "update_file", "path": "", "diff": ""},
        ),
        _function(
            "apply_patch",
            "Create, change or delete a file. A diff has lines that begin with @@, +, - or a "
            "space; that of a new file has lines with + only.",
            ["type", "path"],
            type={"enum": ["create_file", "update_file", "delete_file"]},
            path=_TEXT,
            diff=_TEXT,
        ),
    ),
}
CALLS = {kind.item: kind for kind in (FUNCTION, CUSTOM, *(row[0] for row in BUILT_IN.values()))}
NAMES = {kind.item: function.name for kind, function in BUILT_IN.values()}  # of the functions


@dataclass(frozen=True, slots=True)
class CalledTool:
    """The tool that a function of the prompt stands for."""

    kind: CallKind
    name: str
    namespace: str = ""


@dataclass(slots=True)
class ResponseTools:
    """Tools of a request.

    `called` has the tool of each function by its name in the prompt; `ignored` the paths and types
    of the tools that the model does not see.
    """

    offered: list[ChatTool] = field(default_factory=list)
    called: dict[str, CalledTool] = field(default_factory=dict)
    ignored: list[tuple[str, str]] = field(default_factory=list)

    def add(self, function: Function, kind: CallKind, name: str, namespace: str) -> None:
        """Offer a function that stands for a tool."""
        self.offered.append(ChatTool("function", function))
        self.called[function.name] = CalledTool(kind, name, namespace)


def read_tools(tools: Sequence[msgspec.Raw] | None) -> ResponseTools:
    """Return the functions to offer for the tools of a request.

    Raises InvalidField.
    """
    read_ = ResponseTools()
    for path, tool, namespace in _flatten("tools", tools or (), ""):
        if tool.type in BUILT_IN:
            kind, function = BUILT_IN[tool.type]
            read_.add(function, kind, function.name, "")
        elif tool.type == MCP_TYPE:
            continue  # `response_mcp` reads it
        elif tool.type not in ("function", "custom"):
            read_.ignored.append((path, tool.type))
        elif tool.name is None:
            raise InvalidField(f"{path}.name", "is missing")
        else:
            read_.add(_to_function(path, tool, namespace), _kind(tool), tool.name, namespace)
    return read_


def _kind(tool: ResponseTool) -> CallKind:
    return FUNCTION if tool.type == "function" else CUSTOM


def _to_function(path: str, tool: ResponseTool, namespace: str) -> Function:
    name = full_name(namespace, tool.name or "")
    if tool.type == "function":
        return Function(name, tool.description, tool.parameters)
    return Function(name, *to_schema(path, tool.description, tool.format))


def _flatten(
    path: str, tools: Sequence[msgspec.Raw], namespace: str, depth: int = 0
) -> Iterator[tuple[str, ResponseTool, str]]:
    """Iterate over path, tool and namespace of all tools, those in namespaces as well."""
    for index, raw in enumerate(tools):
        where = f"{path}[{index}]"
        tool = read(where, bytes(raw), ResponseTool)
        if tool.type != "namespace":
            yield where, tool, namespace
        elif tool.name is None or depth == _MAX_NESTED:
            problem = "is missing" if tool.name is None else "is nested too deeply"
            raise InvalidField(f"{where}.name", problem)
        else:
            inner = full_name(namespace, tool.name)
            yield from _flatten(f"{where}.tools", tool.tools or (), inner, depth + 1)


def full_name(namespace: str, name: str) -> str:
    """Return the name of a function in the prompt: after its namespace, at most 64 characters."""
    if not namespace:
        return name
    full = f"{namespace}{name}" if namespace.endswith("_") else f"{namespace}__{name}"
    if len(full) <= _MAX_NAME:
        return full
    digest = hashlib.sha256(full.encode()).hexdigest()[:8]
    return f"{full[: _MAX_NAME - len(digest) - 1]}_{digest}"


def to_argument(kind: CallKind, text: str) -> Any:
    """Return the field of an item with the arguments, of a call that may have been cut off."""
    if not kind.is_object:
        return text
    try:
        arguments = msgspec.json.decode(text or "{}", type=Object)
    except (msgspec.MsgspecError, RecursionError):
        arguments = {}
    return {**kind.default, **arguments}
