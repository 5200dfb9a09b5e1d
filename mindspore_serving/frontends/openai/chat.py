"""POST /v1/chat/completions."""

from contextlib import ExitStack
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.generation import SamplingParams
from mindspore_serving.core.llm_messages import Chunk, Finished, Generate
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.frontends.disconnect import Owned, while_there
from mindspore_serving.frontends.language import LanguageModel, RefusedError, Stream
from mindspore_serving.frontends.openai import messages, sampling, tools
from mindspore_serving.frontends.openai.chat_stream import ChatChunks, stream_chat
from mindspore_serving.frontends.openai.decoding import check_free
from mindspore_serving.frontends.openai.endpoint import timeout_of
from mindspore_serving.frontends.openai.envelope import (
    Head,
    find_generator,
    finish_reason,
    make_head,
    to_usage,
)
from mindspore_serving.frontends.openai.errors import WrongField, to_wrong_field
from mindspore_serving.frontends.openai.logprobs import MAX_CHAT, of_chat
from mindspore_serving.frontends.openai.reading import Reading, to_message
from mindspore_serving.frontends.openai.requests import (
    ChatRequest,
    has_usage,
    refuse_unsupported,
)
from mindspore_serving.frontends.site import Site
from mindspore_serving.frontends.sse import EventStream
from mindspore_serving.llm.chat.reasoning_formats import as_asked, reason_first


async def answer(site: Site, request: Request, asked: ChatRequest) -> Response:
    """The answer to a chat: one object, or a stream of chunks."""
    model = find_generator(site.models, asked.model)
    wants_usage = has_usage(asked)
    ask, reading = to_ask(asked, model)
    head = make_head("chatcmpl", model)
    with ExitStack() as stack:
        stream = stack.enter_context(model.generate(ask, timeout_of(request)))
        try:
            await while_there(request, stream.begin())
        except RefusedError as error:
            raise to_wrong_field(error, "messages", sampling.grammar_param(asked)) from None
        if asked.stream:
            chunks = ChatChunks(head, reading, has_usage=wants_usage)
            events = stream_chat(stream, chunks, ask)
            return EventStream(Owned(events, stack.pop_all()))
        whole = await while_there(request, _collect(stream, head, reading))
    return Response(msgspec.json.encode(whole), media_type="application/json")


def to_ask(asked: ChatRequest, model: LanguageModel) -> tuple[Generate, Reading]:
    """What to ask the model, and how to read its answers.  Raises InvalidInputs."""
    refuse_unsupported(asked)
    card = model.card
    options = template_options(asked)
    calling = tools.to_calling(
        asked.tools or (),
        asked.tool_choice,
        card.tool_format,
        parallel=asked.parallel_tool_calls is not False,
    )
    reasoning = as_asked(card.reasoning_format, options)
    reading = Reading(card.tool_format, reasoning, calling.tools, calling.parallel)
    grammar = sampling.to_grammar(asked)
    if calling.grammar is not None:
        grammar = calling.grammar
    elif grammar is not None and calling.tools:
        raise WrongField(
            sampling.grammar_param(asked),
            'the form of the answer cannot be given together with tools and tool_choice "auto": '
            'give tool_choice "none", "required" or the name of a tool',
        )
    if grammar is not None and reasoning:
        try:
            grammar = reason_first(reasoning, grammar)
        except InvalidInputs as error:
            raise WrongField(sampling.grammar_param(asked), str(error)) from None
    params = to_params(asked, card, reading)
    ask = Generate(
        messages=messages.to_template(asked.messages),
        tools=calling.tools or None,
        template_options=options,
        params=params,
        grammar=grammar,
        truncate=sampling.to_truncate(asked),
        is_stream=bool(asked.stream),
        has_tokens=params.logprobs is not None,
        must_fit=params.max_tokens is not None,
        adapter=model.adapter,
        cache_salt=asked.cache_salt or "",
        priority=asked.priority or 0,
    )
    return ask, reading


def to_params(asked: ChatRequest, card: ModelCard, reading: Reading) -> SamplingParams:
    others: dict[str, Any] = {}
    if reading.shows_special_tokens:
        others["skip_special_tokens"] = False
    return sampling.to_params(
        asked, card, max_tokens=_max_tokens(asked), logprobs=_logprobs(asked), **others
    )


def _max_tokens(asked: ChatRequest) -> int | None:
    new, old = asked.max_completion_tokens, asked.max_tokens
    name = "max_tokens" if new is None else "max_completion_tokens"
    count = old if new is None else new
    if new is not None and old is not None and new != old:
        raise WrongField(name, f"max_tokens is {old} and {name} is {new}: give one of them")
    if count is not None and count < 1:
        raise WrongField(name, f"{name} is {count}, expected at least 1")
    return count


def _logprobs(asked: ChatRequest) -> int | None:
    count = asked.top_logprobs
    if count is not None and not 0 <= count <= MAX_CHAT:
        raise WrongField("top_logprobs", f"top_logprobs is {count}, expected 0 to {MAX_CHAT}")
    if asked.logprobs:
        return count or 0
    if count:
        raise WrongField("top_logprobs", "top_logprobs is given, expected logprobs: true with it")
    return None


def template_options(asked: ChatRequest) -> dict[str, Any]:
    """The variables of the chat template that the request sets."""
    options: dict[str, Any] = {}
    effort = asked.reasoning_effort
    if effort is not None:
        options["reasoning_effort"] = effort
        if effort == "none":
            options["enable_thinking"] = False
    given = asked.chat_template_kwargs or {}
    check_free("chat_template_kwargs", given)
    return {**options, **given}


async def _collect(stream: Stream, head: Head, reading: Reading) -> dict[str, Any]:
    pieces: list[Chunk] = []
    ended: list[Finished] = []
    async for event in stream:
        if isinstance(event, Chunk):
            pieces.append(event)
        elif isinstance(event, Finished):
            ended.append(event)
    pieces.sort(key=lambda piece: piece.index)
    return {
        **head.to_object("chat.completion"),
        "choices": [_choice(piece, reading) for piece in pieces],
        "usage": to_usage(ended),
    }


def _choice(piece: Chunk, reading: Reading) -> dict[str, Any]:
    message = to_message(reading, piece.text)
    return {
        "index": piece.index,
        "message": message,
        "logprobs": None if piece.tokens is None else of_chat(piece.tokens),
        "finish_reason": finish_reason(piece, has_calls="tool_calls" in message),
    }
