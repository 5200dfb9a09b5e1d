"""Fields of /v1/responses: refused, ignored, and translated to fields of a chat."""

from typing import Any

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import FieldRefusal, Fields, at_least_zero, translation
from mindspore_serving.frontends.chat.tools import (
    AllowedTool,
    AllowedTools,
    NamedFunction,
    ToolChoiceBody,
)
from mindspore_serving.frontends.chat.tools import Tool as ChatTool
from mindspore_serving.frontends.chat.unknown_fields import report_kinds
from mindspore_serving.frontends.openai.fields import not_supported
from mindspore_serving.frontends.openai.grammars import JsonSchema, ResponseFormat
from mindspore_serving.frontends.openai.response_input import find_unread as find_unread_items
from mindspore_serving.frontends.openai.response_requests import LOGPROBS
from mindspore_serving.frontends.openai.response_tools import BUILT_IN, MCP_TYPE, read_tools
from mindspore_serving.mcp.names import tool_name


@translation("max_output_tokens", to="max_completion_tokens")
def max_completion_tokens(body: Any, _: ModelCard) -> int | None:
    """Limit the tokens of the answer, by default to the end of the context."""
    count: int | None = body.max_output_tokens
    return count


@translation("include", "top_logprobs", to="logprobs")
def logprobs(body: Any, _: ModelCard) -> bool:
    """Return log-probabilities if `include` has "message.output_text.logprobs".

    Setting `top_logprobs` requests them, too.
    """
    return LOGPROBS in (body.include or ()) or bool(body.top_logprobs)


@translation("text", to="response_format")
def response_format(body: Any, _: ModelCard) -> ResponseFormat | None:
    """Constrain the answer to `text.format`, which has name and schema beside the type."""
    text_format = body.text.format if body.text else None
    if text_format is None or text_format.type != "json_schema":
        return None if text_format is None else ResponseFormat(text_format.type)
    if text_format.name is None or text_format.schema is None:
        name = f"text.format.{'name' if text_format.name is None else 'schema'}"
        raise InvalidField(name, "is missing")
    return ResponseFormat(
        text_format.type,
        JsonSchema(text_format.name, schema=text_format.schema, strict=text_format.strict),
    )


@translation("reasoning", to="reasoning_effort")
def reasoning_effort(body: Any, _: ModelCard) -> str | None:
    """Take `reasoning.effort`; there are no summaries of the reasoning."""
    effort: str | None = body.reasoning.effort if body.reasoning else None
    return effort


@translation("reasoning", to="thinking_token_budget")
def thinking_token_budget(body: Any, _: ModelCard) -> int | None:
    """Limit the reasoning to `reasoning.max_tokens`."""
    limit = body.reasoning.max_tokens if body.reasoning else None
    return at_least_zero("reasoning.max_tokens", limit)


@translation("tools")
def tools(body: Any, _: ModelCard) -> list[ChatTool]:
    """Offer functions, custom tools, shells and apply_patch, all as functions.

    Other tools are not shown to the model; `x-ignored-fields` names them.
    """
    return read_tools(body.tools).offered


def find_unread(body: Any) -> list[str]:
    """Return the paths of the tools and items that the model does not see.

    Agents send built-in tools of OpenAI's server together with their own functions.
    """
    unread = [*read_tools(body.tools).ignored, *find_unread_items(body.input)]
    report_kinds("POST /v1/responses", [kind for _, kind in unread])
    return [path for path, _ in unread]


@translation("tool_choice")
def tool_choice(body: Any, _: ModelCard) -> str | ToolChoiceBody | None:
    """Choose a mode, a function or `allowed_tools`, with their fields beside the type."""
    choice = body.tool_choice
    if choice is None or isinstance(choice, str):
        return choice
    if choice.type in BUILT_IN:
        return ToolChoiceBody("function", NamedFunction(BUILT_IN[choice.type][1].name))
    if choice.type == MCP_TYPE and choice.name and choice.server_label:
        return ToolChoiceBody(
            "function", NamedFunction(tool_name(choice.server_label, choice.name))
        )
    if choice.type in ("function", "custom") and choice.name is not None:
        return ToolChoiceBody("function", NamedFunction(choice.name))
    if choice.type == "allowed_tools":
        names = [tool.get("name", tool.get("type")) for tool in choice.tools or ()]
        allowed = [AllowedTool(function=NamedFunction(str(name))) for name in names if name]
        return ToolChoiceBody("allowed_tools", None, AllowedTools(choice.mode or "auto", allowed))
    return ToolChoiceBody(choice.type)


RESPONSES = Fields(
    "openai",
    refused=(
        *not_supported(
            prompt="there are no stored prompts: send instructions and input",
        ),
        FieldRefusal(
            "truncation",
            "is {}, expected disabled: the input is never truncated, and one that is too long "
            "is refused",
            lambda value: value != "disabled",
        ),
    ),
    translated=(
        max_completion_tokens,
        logprobs,
        response_format,
        reasoning_effort,
        thinking_token_budget,
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
