"""The fields of a response's request: which are refused, ignored, and translated to those of a
chat.
"""

from collections.abc import Iterator
from typing import Any

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import FieldRefusal, Fields, translation
from mindspore_serving.frontends.chat.tools import (
    AllowedTool,
    AllowedTools,
    Function,
    NamedFunction,
    ToolChoiceBody,
)
from mindspore_serving.frontends.chat.tools import Tool as ChatTool
from mindspore_serving.frontends.openai.fields import not_supported
from mindspore_serving.frontends.openai.grammars import JsonSchema, ResponseFormat
from mindspore_serving.frontends.openai.response_input import read
from mindspore_serving.frontends.openai.response_requests import LOGPROBS, ResponseTool


@translation("max_output_tokens", to="max_completion_tokens")
def max_completion_tokens(body: Any, _: ModelCard) -> int | None:
    """up to the end of the context if it is not given"""
    count: int | None = body.max_output_tokens
    return count


@translation("include", "top_logprobs", to="logprobs")
def logprobs(body: Any, _: ModelCard) -> bool:
    """true if `include` has "message.output_text.logprobs", or `top_logprobs` is given"""
    return LOGPROBS in (body.include or ()) or bool(body.top_logprobs)


@translation("text", to="response_format")
def response_format(body: Any, _: ModelCard) -> ResponseFormat | None:
    """`text.format`, with name and schema beside the type"""
    wanted = body.text.format if body.text else None
    if wanted is None or wanted.type != "json_schema":
        return None if wanted is None else ResponseFormat(wanted.type)
    if wanted.name is None or wanted.schema is None:
        name = f"text.format.{'name' if wanted.name is None else 'schema'}"
        raise InvalidField(name, "is missing")
    return ResponseFormat(
        wanted.type, JsonSchema(wanted.name, schema=wanted.schema, strict=wanted.strict)
    )


@translation("reasoning", to="reasoning_effort")
def reasoning_effort(body: Any, _: ModelCard) -> str | None:
    """`reasoning.effort`; there are no summaries"""
    effort: str | None = body.reasoning.effort if body.reasoning else None
    return effort


@translation("tools")
def tools(body: Any, _: ModelCard) -> list[ChatTool]:
    """functions, with name and parameters beside the type; the model does not see other tools, and
    `x-ignored-fields` names them
    """
    return [_to_tool(place, tool) for place, tool in _read_tools(body) if _is_function(tool)]


def find_left_out(body: Any) -> list[str]:
    """The places of tools that the model does not see: agents send those of OpenAI's server
    together with their own.
    """
    return [place for place, tool in _read_tools(body) if not _is_function(tool)]


def _read_tools(body: Any) -> Iterator[tuple[str, ResponseTool]]:
    for index, raw in enumerate(body.tools or ()):
        place = f"tools[{index}]"
        yield place, read(place, bytes(raw), ResponseTool)


def _is_function(tool: ResponseTool) -> bool:
    return tool.type == "function"


def _to_tool(place: str, tool: ResponseTool) -> ChatTool:
    if tool.name is None:
        raise InvalidField(f"{place}.name", "is missing")
    return ChatTool("function", Function(tool.name, tool.description, tool.parameters))


@translation("tool_choice")
def tool_choice(body: Any, _: ModelCard) -> str | ToolChoiceBody | None:
    """a mode, a function or `allowed_tools`, with their fields beside the type"""
    choice = body.tool_choice
    if choice is None or isinstance(choice, str):
        return choice
    if choice.type == "function" and choice.name is not None:
        return ToolChoiceBody("function", NamedFunction(choice.name))
    if choice.type == "allowed_tools":
        names = [tool.get("name") for tool in choice.tools or ()]
        allowed = [AllowedTool(function=NamedFunction(str(name))) for name in names if name]
        return ToolChoiceBody("allowed_tools", None, AllowedTools(choice.mode or "auto", allowed))
    return ToolChoiceBody(choice.type)


RESPONSES = Fields(
    "openai",
    refused=(
        *not_supported(
            conversation="give previous_response_id, or all of it in input",
            prompt="there are no stored prompts: give instructions and input",
            background="the answer is in the response: leave it out, or stream",
        ),
        FieldRefusal(
            "truncation",
            "is {}, expected disabled: nothing is left out of the input, and one that is too long "
            "is refused",
            lambda value: value != "disabled",
        ),
    ),
    translated=(
        max_completion_tokens,
        logprobs,
        response_format,
        reasoning_effort,
        tools,
        tool_choice,
    ),
    ignored=(
        "max_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "stream_options",
    ),
)
