"""The tools of a request: which the model is told of, and which it must call."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.frontends.openai.decoding import check_free, show
from mindspore_serving.frontends.openai.errors import WrongField
from mindspore_serving.frontends.openai.requests import Function, Tool, ToolChoice
from mindspore_serving.llm.chat.tool_formats import tool_grammar

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MODES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class Choice:
    """`mode` is "none", "auto" or "required"; `name` is the one tool that must be called;
    `allowed` are those that may be, None for all."""

    mode: str
    name: str | None = None
    allowed: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Calling:
    """`tools` are those the model is told of, as templates take them; `grammar` forces a call;
    only the first call counts if not `parallel`."""

    tools: list[dict[str, Any]]
    grammar: Grammar | None = None
    parallel: bool = True


def to_calling(
    tools: Sequence[Tool],
    choice: str | ToolChoice | None,
    tool_format: str,
    *,
    parallel: bool,
) -> Calling:
    """`tool_format` is the model's.  Raises WrongField."""
    known = _checked(tools)
    names = [tool["function"]["name"] for tool in known]
    wanted = to_choice(choice, names)
    if wanted.allowed is not None:
        known = [tool for tool in known if tool["function"]["name"] in wanted.allowed]
    if wanted.mode == "none" or not known:
        return Calling([])
    if wanted.mode == "auto":
        if not tool_format:
            raise WrongField(
                "tool_choice",
                'tool_choice is "auto", but the chat template of this model has no form for '
                'calls of tools: give "none", "required" or the name of a tool',
            )
        return Calling(_for_template(known), None, parallel)
    try:
        grammar = tool_grammar(tool_format, known, wanted.name, parallel)
    except InvalidInputs as error:
        raise WrongField("tools", str(error)) from None
    return Calling(_for_template(known), grammar, parallel)


def to_template(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools as chat templates take them.  Raises WrongField for those that are no functions,
    and for wrong or doubled names."""
    return _for_template(_checked(tools))


def _for_template(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what no model learned to read, and with parameters, which templates look into."""
    none = {"type": "object", "properties": {}}
    found = []
    for tool in tools:
        function = {"parameters": none, **tool["function"]}
        kept = ("name", "description", "parameters")
        found.append(
            {"type": "function", "function": {n: function[n] for n in kept if n in function}}
        )
    return found


def _checked(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    if len(tools) > MAX_TOOLS:
        raise WrongField("tools", f"tools has {len(tools)} entries, expected at most {MAX_TOOLS}")
    found: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if tool.type != "function":
            raise WrongField(
                f"{place}.type", f"{place}.type is {show(tool.type)}, expected function"
            )
        if tool.function is None:
            raise WrongField(f"{place}.function", f"{place}.function is missing")
        _check(place, tool.function)
        name = tool.function.name
        if name in found:
            raise WrongField("tools", f"tools has {show(name)} twice, expected different names")
        found[name] = {"type": "function", "function": _function(tool.function)}
    return list(found.values())


def _check(place: str, function: Function) -> None:
    if not _NAME.fullmatch(function.name):
        name = f"{place}.function.name"
        accepted = "1 to 64 letters, digits, - or _"
        raise WrongField(name, f"{name} is {show(function.name)}, expected {accepted}")
    check_free(f"{place}.function.parameters", function.parameters)


def _function(function: Function) -> dict[str, Any]:
    fields = ("name", "description", "parameters", "strict")
    given = {name: getattr(function, name) for name in fields}
    return {name: value for name, value in given.items() if value is not None}


def to_choice(choice: str | ToolChoice | None, names: Sequence[str]) -> Choice:
    """Raises WrongField if it says nothing that is known, or names a tool that is not there."""
    if choice is None:
        return Choice("auto" if names else "none")
    if isinstance(choice, str):
        if choice not in _MODES:
            raise _wrong("tool_choice", choice, f"{', '.join(_MODES)} or an object")
        if choice == "required" and not names:
            raise WrongField("tool_choice", 'tool_choice is "required", expected tools with it')
        return Choice(choice)
    if choice.type == "function" and choice.function is not None:
        name = choice.function.name
        _check_known("tool_choice.function.name", name, names)
        return Choice("required", name)
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        return _allowed(choice, names)
    raise _wrong("tool_choice.type", choice.type, "function or allowed_tools, with a field of it")


def _allowed(choice: ToolChoice, names: Sequence[str]) -> Choice:
    allowed = choice.allowed_tools
    assert allowed is not None, "This is a bug: the caller looks"
    if allowed.mode not in ("auto", "required"):
        raise _wrong("tool_choice.allowed_tools.mode", allowed.mode, "auto or required")
    place = "tool_choice.allowed_tools.tools"
    chosen = [tool.function.name for tool in allowed.tools if tool.function is not None]
    if not chosen:
        raise WrongField(place, f"{place} names no function")
    for name in chosen:
        _check_known(place, name, names)
    return Choice(allowed.mode, None, frozenset(chosen))


def _check_known(place: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        known = ", ".join(names) or "none"
        raise WrongField(place, f"{place} is {show(name)}, expected one of the tools: {known}")


def _wrong(place: str, given: str, accepted: str) -> WrongField:
    return WrongField(place, f"{place} is {show(given)}, expected {accepted}")
