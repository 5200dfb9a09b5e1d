"""POST /v1/responses: a conversation as items in, an answer as items out.

A body is translated to that of a chat, so that the model gets the same for both.
"""

import re
from contextlib import ExitStack

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.llm_messages import Tokenize, Tokenized
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.errors import naming
from mindspore_serving.frontends.chat.fields import capped_header
from mindspore_serving.frontends.chat.models import ServedModel, find_generator
from mindspore_serving.frontends.disconnect import OwnedStream, while_connected
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.openai import answers, chat
from mindspore_serving.frontends.openai.answers import InputTokens
from mindspore_serving.frontends.openai.fields import CHAT
from mindspore_serving.frontends.openai.requests import OpenAIChatRequest
from mindspore_serving.frontends.openai.response_fields import RESPONSES
from mindspore_serving.frontends.openai.response_input import Messages, to_items, to_messages
from mindspore_serving.frontends.openai.response_requests import ResponseRequest
from mindspore_serving.frontends.openai.response_writing import (
    ResponseWriting,
    stream_response,
    write_whole,
)
from mindspore_serving.frontends.openai.stored_responses import conversation_before, owner_of
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.response_store import to_stored
from mindspore_serving.frontends.sse import EventStream

SAME = ("stream", "temperature", "top_p", "top_logprobs", "parallel_tool_calls")  # as in a chat
PLACE = re.compile(r"^messages(?:\[(\d+)\])?")
# What chats call a field, what it is called here.
NAMES = (
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("max_completion_tokens", "max_output_tokens"),
    (".function.", "."),
    (".allowed_tools.", "."),
)


async def answer(state: AppState, http: Request, body: ResponseRequest) -> Response:
    """The answer to a conversation: one object, or a stream of events."""
    model = find_generator(state.models, body.model)
    RESPONSES.refuse(body)
    before = await conversation_before(state, http, body.previous_response_id)
    messages = to_messages(body.input, body.instructions, before)
    writing = ResponseWriting(_filled(body, model), model.name)

    def keep(whole: answers.OpenAIResponse) -> None:
        if body.store is not False:
            found = to_stored(whole, whole.output, (*before, *to_items(body.input)))
            state.responses.add(owner_of(http), whole.id, found, state.models.limits)

    with ExitStack() as stack:
        chat_body = _to_chat(body, messages, model.card)
        try:
            request = chat.to_request(chat_body, model)
            with naming("input", CHAT, chat_body):
                generation = stack.enter_context(model.generate(request, request_options_of(http)))
                started = await while_connected(http, generation.begin())
        except InvalidField as error:
            raise _renamed(error, messages) from None
        name = "max_output_tokens" if body.max_output_tokens is not None else ""
        headers = capped_header(name, started)
        if body.stream:
            events = stream_response(generation, writing, keep)
            return EventStream(OwnedStream(events, stack.pop_all()), headers)
        whole = await while_connected(http, write_whole(generation, writing))
    keep(whole)
    return to_json(whole, headers=headers)


async def count(state: AppState, http: Request, body: ResponseRequest) -> InputTokens:
    """How many tokens the input of a response has."""
    model = find_generator(state.models, body.model)
    RESPONSES.refuse(body)
    before = await conversation_before(state, http, body.previous_response_id)
    messages = to_messages(body.input, body.instructions, before)
    chat_body = _to_chat(body, messages, model.card)
    try:
        wanted = chat.to_request(chat_body, model)
        request = Tokenize(
            messages=wanted.messages,
            tools=wanted.tools,
            tool_choice=wanted.tool_choice,
            template_options=wanted.template_options,
        )
        with naming("input", CHAT, chat_body):
            found = await while_connected(
                http, model.call(request, Tokenized, request_options_of(http))
            )
    except InvalidField as error:
        raise _renamed(error, messages) from None
    return InputTokens(input_tokens=len(found.tokens))


def _filled(body: ResponseRequest, model: ServedModel) -> ResponseRequest:
    """With the sampling that it does not give, as the answer repeats it."""
    sampling = dict(model.card.sampling)
    given = {name: getattr(body, name) for name in ("temperature", "top_p")}
    missing = {name: sampling.get(name, 1.0) for name, value in given.items() if value is None}
    return msgspec.structs.replace(body, **missing)


def _to_chat(body: ResponseRequest, messages: Messages, card: ModelCard) -> OpenAIChatRequest:
    same = {name: getattr(body, name) for name in SAME}
    options = RESPONSES.options(body, card, has_sampling=True)
    return OpenAIChatRequest(messages=messages.found, **same, **options)


def _renamed(error: InvalidField, messages: Messages) -> InvalidField:
    """`error` about a field of a chat, with the name that the field has here."""
    name = PLACE.sub(
        lambda found: messages.places[int(found[1])] if found[1] else "input", error.field
    )
    for chats, ours in NAMES:
        name = name.replace(chats, ours)
    return error.renamed(name) if error.field else error
