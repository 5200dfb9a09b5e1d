"""POST /completion and /infill of llama.cpp."""

from contextlib import ExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.llm_messages import Chunk, Finished, Generate
from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.errors import renaming_fields, to_event
from mindspore_serving.frontends.chat.fields import Fields, capped_header, field_of_length
from mindspore_serving.frontends.chat.models import Generation, ServedModel, find_generator
from mindspore_serving.frontends.disconnect import OwnedStream, while_connected
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.llamacpp.answers import (
    LlamaCppAnswer,
    LlamaCppAnswerBuilder,
    select,
)
from mindspore_serving.frontends.llamacpp.fields import INFILL, PROMPT
from mindspore_serving.frontends.llamacpp.requests import (
    InfillRequest,
    LlamaCppRequest,
    PromptRequest,
)
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.sse import EventStream


async def complete(state: AppState, http: Request, body: PromptRequest) -> Response:
    """Continue a prompt, a text or token ids."""
    return await _answer(state, http, body, PROMPT, prompt=body.prompt)


async def infill(state: AppState, http: Request, body: InfillRequest) -> Response:
    """Write what stands between a prefix and a suffix."""
    return await _answer(state, http, body, INFILL)


async def _answer(
    state: AppState, http: Request, body: LlamaCppRequest, fields: Fields, **prompt: Any
) -> Response:
    """Answer with one object, or with a stream.

    The model streams in both cases, so that its times can be measured.
    """
    model = find_generator(state.models, body.model)
    request = _to_request(body, model, fields, prompt)
    has_answer = getattr(body, "n_predict", None) != 0
    builder = LlamaCppAnswerBuilder(model.name, has_answer, bool(body.return_tokens))
    with ExitStack() as stack:
        with renaming_fields(fields.name_of("prompt", body), fields, body):
            generation = model.generate(request, request_options_of(http))
            stack.enter_context(generation)
            started = await while_connected(http, generation.begin())
        headers = capped_header(field_of_length(fields, body), started)
        builder.start(started)
        if body.stream:
            events = generation.stream_bytes(b"", builder.event, to_event)
            return EventStream(OwnedStream(events, stack.pop_all()), headers)
        answer = await while_connected(http, _collect(generation, builder))
    paths = body.response_fields
    return to_json(select(answer, paths) if paths else answer, headers=headers)


def _to_request(
    body: LlamaCppRequest, model: ServedModel, fields: Fields, prompt: dict[str, Any]
) -> Generate:
    """Return the request to the model.

    Raises InvalidField.
    """
    fields.refuse(body)
    params = fields.params(body, model.card, {"max_tokens": None, **model.card.defaults})
    options = fields.options(body, model.card)
    return Generate(params=params, is_stream=True, adapter=model.adapter, **prompt, **options)


async def _collect(generation: Generation, builder: LlamaCppAnswerBuilder) -> LlamaCppAnswer:
    """Return the complete answer of `generation`, which has begun."""
    texts: list[str] = []
    ids: list[int] = []
    async for event in generation:
        if isinstance(event, Chunk):
            text, token_ids = builder.take(event)
            texts.append(text)
            ids += token_ids
        elif isinstance(event, Finished):
            return builder.end(event, "".join(texts), ids)
    raise ServingError("the answer ended early")
