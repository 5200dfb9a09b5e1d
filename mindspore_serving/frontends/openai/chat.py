"""POST /v1/chat/completions."""

from contextlib import ExitStack

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.llm_messages import (
    Chunk,
    Finished,
    Generate,
    GeneratedToken,
    PromptScored,
    Started,
)
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat import messages
from mindspore_serving.frontends.chat.errors import renaming_fields, to_event
from mindspore_serving.frontends.chat.fields import capped_header, field_of_length
from mindspore_serving.frontends.chat.models import Generation, ServedModel, find_generator
from mindspore_serving.frontends.chat.tools import names_of_custom, read_tools
from mindspore_serving.frontends.disconnect import OwnedStream, while_connected
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.openai.answers import ChatCompletion, ChunkHead
from mindspore_serving.frontends.openai.chat_choices import (
    ChatChunks,
    ChatResponseOptions,
    CompleteChoice,
)
from mindspore_serving.frontends.openai.envelope import make_head, to_usage
from mindspore_serving.frontends.openai.fields import CHAT
from mindspore_serving.frontends.openai.requests import OpenAIChatRequest, has_usage
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.sse import EventStream

TGI = "tgi"  # what the Python client of TGI calls every model


async def answer(state: AppState, http: Request, body: OpenAIChatRequest) -> Response:
    """Answer a chat with one object, or with a stream of chunks."""
    model = find_generator(state.models, body.model)
    wants_usage = has_usage(body)
    request = to_request(body, model)
    head = make_head("chatcmpl", "chat.completion", model)
    with ExitStack() as stack:
        with renaming_fields("messages", CHAT, body):
            generation = stack.enter_context(model.generate(request, request_options_of(http)))
            started = await while_connected(http, generation.begin())
        options = _response_options(body, request, started)
        headers = capped_header(field_of_length(CHAT, body), started)
        if body.stream:
            chunks = ChatChunks(head, request.params.n, options, has_usage=wants_usage)
            if body.model == TGI and "openai" not in http.headers.get("user-agent", "").lower():
                chunks.adapt_to_tgi()
            events = generation.stream_bytes(chunks.begin(), chunks.take, to_event)
            return EventStream(OwnedStream(events, stack.pop_all()), headers)
        completion = await while_connected(http, _collect(generation, head, options))
    return to_json(completion, headers=headers)


def to_request(body: OpenAIChatRequest, model: ServedModel) -> Generate:
    """Translate the body to the request to the model.

    Raises InvalidField.
    """
    CHAT.refuse(body)
    parallel = body.parallel_tool_calls is not False
    tools, choice = read_tools(body.tools or (), body.tool_choice, parallel=parallel)
    options = CHAT.options(body, model.card)
    params = CHAT.params(body, model.card, {"max_tokens": None, **model.card.defaults})
    return Generate(
        messages=messages.to_template(body.messages, model.card),
        tools=tools or None,
        tool_choice=choice,
        parse_output=True,
        params=params,
        is_stream=bool(body.stream),
        has_tokens=params.logprobs is not None or bool(body.return_token_ids),
        has_prompt_tokens=bool(body.return_token_ids),
        adapter=model.adapter,
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
        **options,
    )


def _response_options(
    body: OpenAIChatRequest, request: Generate, started: Started
) -> ChatResponseOptions:
    last = (request.messages or [{}])[-1]
    is_echoed = bool(body.echo) and last.get("role") == "assistant"
    ids = [token.id for token in started.prompt or ()] if body.return_token_ids else None
    return ChatResponseOptions(
        str(last.get("content") or "") if is_echoed else "",
        has_logprobs=bool(body.logprobs),
        prompt_ids=ids,
        num_prompt_logprobs=body.prompt_logprobs,
        may_call=bool(request.tools) and request.tool_choice.mode != "none",
        custom=names_of_custom(body.tools or ()),
    )


async def _collect(
    generation: Generation, head: ChunkHead, options: ChatResponseOptions
) -> ChatCompletion:
    """Return the complete answer of `generation`, which has begun."""
    choices: dict[int, CompleteChoice] = {}
    finished: list[Finished] = []
    prompt: list[GeneratedToken] = []
    async for event in generation:
        if isinstance(event, Chunk):
            choices.setdefault(event.index, CompleteChoice(options)).add(event)
        elif isinstance(event, PromptScored):
            prompt += event.tokens
        elif isinstance(event, Finished):
            finished.append(event)
    return ChatCompletion(
        **msgspec.structs.asdict(head),
        choices=[choices[index].to_object(index) for index in sorted(choices)],
        usage=to_usage(finished),
        **options.of_prompt(prompt),
    )
