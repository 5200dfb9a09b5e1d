"""Bodies of OpenAI's requests.

Fields that are not listed are accepted and ignored, as clients send many that mean nothing to a
self-hosted server.
"""

from typing import Any

import msgspec

from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import Int
from mindspore_serving.frontends.chat.messages import ChatMessage
from mindspore_serving.frontends.chat.tools import Tool, ToolChoiceBody
from mindspore_serving.frontends.openai.fields import CHAT, COMPLETIONS
from mindspore_serving.frontends.openai.grammars import ResponseFormat, StructuredOutputs

Prompt = str | list[int]
Object = dict[str, Any]


class StreamOptions(msgspec.Struct):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class OpenAIRequest(msgspec.Struct, kw_only=True):
    """Fields common to chats and completions; `Fields.extend` adds other sampling parameters."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Int | None = None
    n: Int | None = None
    use_beam_search: bool | None = None
    stop: str | list[str] | None = None
    skip_special_tokens: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    grammar: str | None = None
    truncate_prompt_tokens: Int | None = None
    cache_salt: str | None = None
    priority: Int | None = None
    echo: bool | None = None
    prompt_logprobs: Int | None = None
    return_token_ids: bool | None = None


class ReasoningOptions(msgspec.Struct):
    """Options of the reasoning of a chat, in OpenRouter's form."""

    effort: str | None = None
    max_tokens: Int | None = None


@CHAT.extend
class OpenAIChatRequest(OpenAIRequest, kw_only=True):
    """Body of /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: Object | None = None
    chat_template: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[Object] | None = None


@COMPLETIONS.extend
class CompletionRequest(OpenAIRequest, kw_only=True):
    """Body of /v1/completions."""

    prompt: str | list[str | Int | list[Int]]
    suffix: str | None = None
    best_of: Int | None = None
    logprobs: Int | None = None
    add_special_tokens: bool | None = None
    src_lang: str | None = None
    tgt_lang: str | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of /tokenize."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: Object | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of /detokenize."""

    model: str | None = None
    tokens: list[Int]


def has_usage(body: OpenAIRequest) -> bool:
    """Return whether the stream ends with a chunk of token counts.

    Raises InvalidField.
    """
    if body.stream_options is None:
        return False
    if not body.stream:
        raise InvalidField("stream_options", "is set, expected stream: true with it")
    return bool(body.stream_options.include_usage)
