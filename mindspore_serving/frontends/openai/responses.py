"""POST /v1/responses: input items to output items.

The body is translated to the body of a chat, so the model gets the same prompt for both.
"""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.llm_messages import Tokenize, Tokenized
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.errors import renaming_fields
from mindspore_serving.frontends.chat.fields import capped_header
from mindspore_serving.frontends.chat.mcp_rounds import begin_generation
from mindspore_serving.frontends.chat.mcp_tools import McpOffer, find_offer
from mindspore_serving.frontends.chat.messages import ChatMessage
from mindspore_serving.frontends.chat.models import ServedModel, find_generator
from mindspore_serving.frontends.chat.unknown_fields import name_ignored, report_kinds
from mindspore_serving.frontends.disconnect import OwnedStream, while_connected
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.openai import answers, background, chat, conversations
from mindspore_serving.frontends.openai.answers import InputTokens
from mindspore_serving.frontends.openai.background import BackgroundResponse
from mindspore_serving.frontends.openai.fields import CHAT
from mindspore_serving.frontends.openai.requests import OpenAIChatRequest
from mindspore_serving.frontends.openai.response_fields import RESPONSES
from mindspore_serving.frontends.openai.response_input import (
    ResponseConversation,
    to_items,
    to_messages,
)
from mindspore_serving.frontends.openai.response_mcp import read_wishes
from mindspore_serving.frontends.openai.response_requests import ResponseRequest
from mindspore_serving.frontends.openai.response_tools import MCP_TYPE, read_tools
from mindspore_serving.frontends.openai.response_writing import (
    ResponseBuilder,
    collect_response,
    stream_response,
)
from mindspore_serving.frontends.openai.stored_responses import owner_of
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.response_store import to_stored
from mindspore_serving.frontends.sse import EventStream

# Fields with the same name and meaning in a chat.
SAME = ("stream", "temperature", "top_p", "top_logprobs", "parallel_tool_calls")
MESSAGES = re.compile(r"^messages(?:\[(\d+)\])?")
# Names of fields in a chat, and here.
NAMES = (
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("max_completion_tokens", "max_output_tokens"),
    (".function.", "."),
    (".allowed_tools.", "."),
)


async def answer(state: AppState, http: Request, body: ResponseRequest) -> Response:
    """Answer a conversation with one object, or with a stream of events."""
    response = await _answer(state, http, body)
    if state.mcp is None and (wishes := read_wishes(body.tools)):
        report_kinds("POST /v1/responses", [MCP_TYPE])
        name_ignored(response, [wish.path.rpartition(".")[0] for wish in wishes])
    return response


async def _answer(state: AppState, http: Request, body: ResponseRequest) -> Response:
    model = find_generator(state.models, body.model)
    RESPONSES.refuse(body)
    if body.background and body.store is False:
        raise InvalidField("background", "is true, expected store: true with it")
    offered = await _find_offer(state, http, body)
    builder = ResponseBuilder(_filled(body, model), model.name, offered)
    add_items = partial(conversations.add_turn, state, http, body)

    def keep(response: answers.OpenAIResponse) -> None:
        if body.store is not False:
            stored = to_stored(response, response.output, items)
            state.responses.add(owner_of(http), response.id, stored, state.models.limits)
        add_items(response)

    with ExitStack() as stack:
        stack.enter_context(conversations.held(state, http, body))
        before = await conversations.items_before(state, http, body)
        items = (*before, *to_items(body.input))
        conversation = to_messages(body.input, body.instructions, before, _source_of(body))
        chat_body = _to_chat(body, conversation.messages, model.card, offered)
        try:
            request = chat.to_request(chat_body, model)
            with renaming_fields("input", CHAT, chat_body):
                options = request_options_of(http)
                generation = begin_generation(model, request, options, offered)
                stack.enter_context(generation)
                started = await while_connected(http, generation.begin())
        except InvalidField as error:
            raise _renamed(error, conversation) from None
        name = "max_output_tokens" if body.max_output_tokens is not None else ""
        headers = capped_header(name, started)
        if body.background:
            running = BackgroundResponse(builder, items)
            events = stream_response(generation, builder, add_items)
            background.start(state, http, running, events, stack.pop_all())
            if body.stream:
                return EventStream(running.follow(-1), headers)
            return to_json(builder.to_object(), headers=headers)
        if body.stream:
            events = stream_response(generation, builder, keep)
            return EventStream(OwnedStream(events, stack.pop_all()), headers)
        response = await while_connected(http, collect_response(generation, builder))
        keep(response)
    return to_json(response, headers=headers)


async def count(state: AppState, http: Request, body: ResponseRequest) -> InputTokens:
    """Count the tokens of a response's input."""
    model = find_generator(state.models, body.model)
    RESPONSES.refuse(body)
    before = await conversations.items_before(state, http, body)
    conversation = to_messages(body.input, body.instructions, before, _source_of(body))
    offered = await _find_offer(state, http, body)
    chat_body = _to_chat(body, conversation.messages, model.card, offered)
    try:
        generate = chat.to_request(chat_body, model)
        request = Tokenize(
            messages=generate.messages,
            tools=generate.tools,
            tool_choice=generate.tool_choice,
            template_options=generate.template_options,
        )
        with renaming_fields("input", CHAT, chat_body):
            tokenized = await while_connected(
                http, model.call(request, Tokenized, request_options_of(http))
            )
    except InvalidField as error:
        raise _renamed(error, conversation) from None
    return InputTokens(input_tokens=len(tokenized.tokens))


async def _find_offer(state: AppState, http: Request, body: ResponseRequest) -> McpOffer | None:
    taken = read_tools(body.tools).called
    return await find_offer(state.mcp, http, read_wishes(body.tools), taken)


def _source_of(body: ResponseRequest) -> str:
    return "previous_response_id" if body.conversation is None else "conversation"


def _filled(body: ResponseRequest, model: ServedModel) -> ResponseRequest:
    """Fill in the sampling parameters that the body leaves out, as the answer repeats them."""
    sampling = model.card.defaults
    sent = {name: getattr(body, name) for name in ("temperature", "top_p")}
    missing = {name: sampling.get(name, 1.0) for name, value in sent.items() if value is None}
    return msgspec.structs.replace(body, **missing)


def _to_chat(
    body: ResponseRequest,
    messages: Sequence[ChatMessage],
    card: ModelCard,
    offered: McpOffer | None,
) -> OpenAIChatRequest:
    same = {name: getattr(body, name) for name in SAME}
    same["stream"] = body.stream or body.background  # whose events may be read while it runs
    options = RESPONSES.options(body, card, has_sampling=True)
    if offered is not None:
        options["tools"] = [*(options.get("tools") or ()), *offered.functions()]
    return OpenAIChatRequest(messages=[*messages], **same, **options)


def _renamed(error: InvalidField, conversation: ResponseConversation) -> InvalidField:
    """Return an error about a field of a chat with the field's name in the response's request."""
    name = MESSAGES.sub(
        lambda match: conversation.paths[int(match[1])] if match[1] else "input", error.field
    )
    for chat_name, name_here in NAMES:
        name = name.replace(chat_name, name_here)
    return error.renamed(name) if error.field else error
