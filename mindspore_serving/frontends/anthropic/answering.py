"""POST /v1/messages and /v1/messages/count_tokens."""

from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving import log
from mindspore_serving.core.llm_messages import Generate, Tokenize, Tokenized
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.anthropic.answers import Count
from mindspore_serving.frontends.anthropic.conversation import to_messages
from mindspore_serving.frontends.anthropic.errors import REQUEST_ID, to_event
from mindspore_serving.frontends.anthropic.fields import MESSAGES
from mindspore_serving.frontends.anthropic.requests import CountRequest, MessagesRequest
from mindspore_serving.frontends.anthropic.tools import read_tools, read_wishes
from mindspore_serving.frontends.anthropic.writing import (
    PING,
    AnthropicMessageBuilder,
    collect_message,
)
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.errors import renaming_fields
from mindspore_serving.frontends.chat.fields import capped_header
from mindspore_serving.frontends.chat.mcp_rounds import begin_generation
from mindspore_serving.frontends.chat.mcp_tools import McpOffer, find_offer
from mindspore_serving.frontends.chat.messages import to_template
from mindspore_serving.frontends.chat.models import ServedModel, find_generator, stream_bytes
from mindspore_serving.frontends.disconnect import OwnedStream, while_connected
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.sse import EventStream


async def answer(state: AppState, http: Request, body: MessagesRequest) -> Response:
    """Answer a conversation with one object, or with a stream of events."""
    model = find_generator(state.models, body.model)
    offered = await _find_offer(state, http, body)
    request = to_request(body, model, offered)
    with ExitStack() as stack:
        with renaming_fields("messages", MESSAGES, body):
            generation = begin_generation(model, request, request_options_of(http), offered)
            stack.enter_context(generation)
            started = await while_connected(http, generation.begin())
        num_tokens = started.num_prompt_tokens
        builder = AnthropicMessageBuilder(model.name, request.params, num_tokens, offered)
        headers = capped_header("max_tokens", started)
        if body.stream:
            events = stream_bytes(generation, builder.begin(), builder.write, to_event)
            stream = EventStream(OwnedStream(events, stack.pop_all()), headers, ping=PING)
            return _with_request_id(stream)
        message = await while_connected(http, collect_message(generation, builder))
    return _with_request_id(Response(message, 200, headers, "application/json"))


async def count(state: AppState, http: Request, body: CountRequest) -> Response:
    """Count the tokens that the model reads."""
    model = find_generator(state.models, body.model)
    MESSAGES.refuse(body)
    tools, choice = read_tools(body, await _find_offer(state, http, body))
    request = Tokenize(
        messages=to_template(to_messages(body, model.card), model.card),
        tools=tools,
        tool_choice=choice,
        template_options=MESSAGES.options(body, model.card).get("template_options", {}),
    )
    with renaming_fields("messages", MESSAGES, body):
        tokenized = await while_connected(
            http, model.call(request, Tokenized, request_options_of(http))
        )
    return _with_request_id(to_json(Count(len(tokenized.tokens))))


async def _find_offer(state: AppState, http: Request, body: CountRequest) -> McpOffer | None:
    """Return the tools of MCP servers that the request names."""
    if body.mcp_servers and state.mcp is None:
        problem = "is not supported: the server runs without --mcp-config"
        raise InvalidField("mcp_servers", f"{problem}; call the servers in the client")
    taken = {tool.name for tool in body.tools or () if tool.name is not None}
    return await find_offer(state.mcp, http, read_wishes(body), taken)


def to_request(
    body: MessagesRequest, model: ServedModel, offered: McpOffer | None = None
) -> Generate:
    """Translate the body to the request to the model.

    Raises InvalidField.
    """
    MESSAGES.refuse(body)
    tools, choice = read_tools(body, offered)
    return Generate(
        messages=to_template(to_messages(body, model.card), model.card),
        tools=tools or None,
        tool_choice=choice,
        parse_output=True,
        params=MESSAGES.params(body, model.card, model.card.defaults),
        is_stream=bool(body.stream),
        adapter=model.adapter,
        **MESSAGES.options(body, model.card),
    )


def _with_request_id(response: Response) -> Response:
    """Add the request id to the headers, where Anthropic's clients look for it."""
    response.headers[REQUEST_ID] = log.request_id.get()
    return response
