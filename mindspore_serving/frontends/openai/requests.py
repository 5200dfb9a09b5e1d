"""The bodies that clients send.  Fields that are not here are taken and not read, as clients send
many that mean nothing to a server of one's own (`user`, `metadata`, `store`).
"""

from typing import Annotated, Any

import msgspec

from mindspore_serving.frontends.openai.errors import WrongField

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Object = dict[str, Any]

MAX_STOPS = 4


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class JsonSchema(msgspec.Struct):
    name: str
    description: str | None = None
    schema: Object | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct):
    """Just one is given."""

    json: Object | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    type: str
    function: Function | None = None


class NamedFunction(msgspec.Struct):
    name: str


class AllowedTool(msgspec.Struct):
    type: str = "function"
    function: NamedFunction | None = None


class AllowedTools(msgspec.Struct):
    mode: str
    tools: list[AllowedTool]


class ToolChoice(msgspec.Struct):
    type: str
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


class Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str | Object | None = None


class ToolCall(msgspec.Struct):
    function: CalledFunction
    id: str | None = None
    type: str | None = None


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Common(msgspec.Struct, kw_only=True):
    """What chats and completions share; those from `top_k` on are not OpenAI's."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: Int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[Int, float] | None = None
    seed: Int | None = None
    response_format: ResponseFormat | None = None
    top_k: Int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: Int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[Int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    bad_words: list[str] | None = None
    structured_outputs: StructuredOutputs | None = None
    truncate_prompt_tokens: Int | None = None
    cache_salt: str | None = None
    priority: Int | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None


class ChatRequest(Common, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: Object | None = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    web_search_options: Any = None


class CompletionRequest(Common, kw_only=True):
    """The body of /v1/completions."""

    prompt: str | list[str | Int | list[Int]]
    best_of: Int | None = None
    echo: bool | None = None
    logprobs: Int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of /tokenize."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: Object | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of /detokenize."""

    model: str | None = None
    tokens: list[Int]


_NOT_SUPPORTED = {
    "functions": "give tools",
    "function_call": "give tool_choice",
    "audio": "the answer is text",
    "web_search_options": "there is no web search",
    "guided_json": "give response_format or structured_outputs",
    "guided_regex": "give structured_outputs",
    "guided_choice": "give structured_outputs",
    "guided_grammar": "give structured_outputs",
    "suffix": "the models answer behind the prompt, not inside it; leave it out",
}


def refuse_unsupported(asked: Common) -> None:
    """Raises WrongField for what would change the answer, and cannot be done."""
    for name, advice in _NOT_SUPPORTED.items():
        if getattr(asked, name, None):
            raise WrongField(name, f"{name} is not supported: {advice}")


def has_usage(asked: Common) -> bool:
    """Whether the stream ends with a chunk that counts tokens.  Raises WrongField."""
    if asked.stream_options is None:
        return False
    if not asked.stream:
        raise WrongField("stream_options", "stream_options is given, expected stream: true with it")
    return bool(asked.stream_options.include_usage)
