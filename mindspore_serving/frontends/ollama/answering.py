"""POST /api/chat and /api/generate."""

from contextlib import ExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.errors import Forbidden, InvalidField
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.errors import renaming_fields
from mindspore_serving.frontends.chat.fields import Fields, capped_header
from mindspore_serving.frontends.chat.messages import ChatMessage, to_template
from mindspore_serving.frontends.chat.models import Generation, ServedModel, find_generator
from mindspore_serving.frontends.chat.tools import read_tools
from mindspore_serving.frontends.disconnect import OwnedStream, while_connected
from mindspore_serving.frontends.ollama.errors import to_line
from mindspore_serving.frontends.ollama.fields import (
    CHAT,
    GENERATE,
    NO_IMAGES,
    to_params,
)
from mindspore_serving.frontends.ollama.models import served_name
from mindspore_serving.frontends.ollama.requests import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaGenerationRequest,
    to_content,
    to_messages,
)
from mindspore_serving.frontends.ollama.writing import LINES, OllamaAnswerBuilder, collect_answer
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.sse import EventStream


async def chat(state: AppState, http: Request, body: OllamaChatRequest) -> Response:
    """Answer a chat; without messages, report that the model is loaded."""
    model = find_generator(state.models, served_name(state, body.model))
    builder = OllamaAnswerBuilder(body.model or model.name, is_chat=True)
    common = _common(CHAT, body, model)
    if not body.messages:
        return _loaded(body, builder)
    tools, choice = read_tools(body.tools or (), None, parallel=True)
    request = Generate(
        messages=to_template(to_messages(body, model.card), model.card),
        tools=tools or None,
        tool_choice=choice,
        parse_output=True,
        **common,
    )
    with renaming_fields("messages", CHAT, body):
        return await _answer(http, body, model.generate(request, request_options_of(http)), builder)


async def generate(state: AppState, http: Request, body: OllamaGenerateRequest) -> Response:
    """Answer a prompt; without a prompt, report that the model is loaded."""
    model = find_generator(state.models, served_name(state, body.model))
    builder = OllamaAnswerBuilder(body.model or model.name, is_chat=False)
    common = _common(GENERATE, body, model)
    if not body.prompt:
        return _loaded(body, builder)
    request = _to_request(body, model, common)
    with renaming_fields("prompt", GENERATE, body):
        return await _answer(http, body, model.generate(request, request_options_of(http)), builder)


async def _answer(
    http: Request,
    body: OllamaGenerationRequest,
    generation: Generation,
    builder: OllamaAnswerBuilder,
) -> Response:
    """Answer with one object, or with a stream of lines.

    The model streams in both cases, so that its times can be measured.
    """
    with ExitStack() as stack:
        stack.enter_context(generation)
        started = await while_connected(http, generation.begin())
        has_limit = (body.options or {}).get("num_predict") is not None
        headers = capped_header("options.num_predict" if has_limit else "", started)
        builder.start()
        if body.stream is False:
            answer = await while_connected(http, collect_answer(generation, builder))
            return Response(answer, 200, headers, "application/json")
        lines = generation.stream_bytes(b"", builder.line, to_line)
        owned = OwnedStream(lines, stack.pop_all())
        return EventStream(owned, headers, media_type=LINES, ping=b" ")


def _loaded(body: OllamaGenerationRequest, builder: OllamaAnswerBuilder) -> Response:
    """Return the answer to a request that only loads the model.

    Raises Forbidden if it would unload the model.
    """
    if body.keep_alive in (0, "0", "0s"):
        raise Forbidden("keep_alive is 0, but clients cannot unload models of this server")
    return Response(builder.loaded(), media_type="application/json")


def _to_request(
    body: OllamaGenerateRequest, model: ServedModel, common: dict[str, Any]
) -> Generate:
    """Return the request for a prompt.

    It is a chat unless it is raw, has a suffix, or the model has no chat template.  Raises
    InvalidField.
    """
    if not body.raw and not body.suffix and model.card.has_chat_template:
        messages = [
            ChatMessage("user", to_content("images", body.prompt or "", body.images, model.card))
        ]
        if body.system:
            messages.insert(0, ChatMessage("system", body.system))
        return Generate(messages=to_template(messages, model.card), parse_output=True, **common)
    if body.images:
        raise InvalidField("images", f"{NO_IMAGES} in a raw prompt")
    if body.system:
        raise InvalidField(
            "system",
            "is set, but the prompt is raw, has a suffix, or the model has no chat template",
        )
    return Generate(prompt=body.prompt, suffix=body.suffix or None, **common)


def _common(fields: Fields, body: OllamaGenerationRequest, model: ServedModel) -> dict[str, Any]:
    """Return the fields that the requests of chats and prompts share.

    Raises InvalidField.
    """
    fields.refuse(body)
    options = fields.options(body, model.card, has_sampling=True)
    sampling = {"max_tokens": None, **model.card.defaults}
    count = options.pop("logprobs", None)
    params = to_params(body.options, model.card, sampling, logprobs=count)
    has_tokens = params.logprobs is not None
    return {
        "params": params,
        "is_stream": True,
        "has_tokens": has_tokens,
        "adapter": model.adapter,
        **options,
    }
