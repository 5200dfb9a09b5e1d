"""POST /api/chat and /api/generate."""

from contextlib import ExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.errors import Forbidden, InvalidField
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.errors import naming
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
from mindspore_serving.frontends.ollama.models import without_tag
from mindspore_serving.frontends.ollama.requests import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaGenerating,
    to_content,
    to_messages,
)
from mindspore_serving.frontends.ollama.writing import LINES, OllamaWriting, write_whole
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.sse import EventStream


async def chat(state: AppState, http: Request, body: OllamaChatRequest) -> Response:
    """The answer to a conversation; without messages, that the model is loaded."""
    model = find_generator(state.models, without_tag(body.model))
    writing = OllamaWriting(body.model or model.name, is_chat=True)
    common = _common(CHAT, body, model)
    if not body.messages:
        return _loaded(body, writing)
    tools, choice = read_tools(body.tools or (), None, parallel=True)
    request = Generate(
        messages=to_template(to_messages(body, model.card), model.card),
        tools=tools or None,
        tool_choice=choice,
        parse_output=True,
        **common,
    )
    with naming("messages", CHAT, body):
        return await _answer(http, body, model.generate(request, request_options_of(http)), writing)


async def generate(state: AppState, http: Request, body: OllamaGenerateRequest) -> Response:
    """The answer to a prompt; without one, that the model is loaded."""
    model = find_generator(state.models, without_tag(body.model))
    writing = OllamaWriting(body.model or model.name, is_chat=False)
    common = _common(GENERATE, body, model)
    if not body.prompt:
        return _loaded(body, writing)
    request = _to_request(body, model, common)
    with naming("prompt", GENERATE, body):
        return await _answer(http, body, model.generate(request, request_options_of(http)), writing)


async def _answer(
    http: Request, body: OllamaGenerating, generation: Generation, writing: OllamaWriting
) -> Response:
    """One object, or a stream of lines; what the model does is streamed in both, for its times."""
    with ExitStack() as stack:
        stack.enter_context(generation)
        started = await while_connected(http, generation.begin())
        given = (body.options or {}).get("num_predict") is not None
        headers = capped_header("options.num_predict" if given else "", started)
        writing.start()
        if body.stream is False:
            whole = await while_connected(http, write_whole(generation, writing))
            return Response(whole, 200, headers, "application/json")
        lines = generation.written(b"", writing.line, to_line)
        owned = OwnedStream(lines, stack.pop_all())
        return EventStream(owned, headers, media_type=LINES, ping=b" ")


def _loaded(body: OllamaGenerating, writing: OllamaWriting) -> Response:
    """The answer to a request that asks for nothing but the model.  Raises Forbidden if it is to
    be unloaded.
    """
    if body.keep_alive in (0, "0", "0s"):
        raise Forbidden("keep_alive is 0: a model is not unloaded by a request to it")
    return Response(writing.loaded(), media_type="application/json")


def _to_request(
    body: OllamaGenerateRequest, model: ServedModel, common: dict[str, Any]
) -> Generate:
    """The request for a prompt, which is a conversation unless it is raw, or the model knows none.
    Raises InvalidField.
    """
    if not body.raw and model.card.has_chat_template:
        said = [
            ChatMessage("user", to_content("images", body.prompt or "", body.images, model.card))
        ]
        if body.system:
            said.insert(0, ChatMessage("system", body.system))
        messages = to_template(said, model.card)
        return Generate(messages=messages, parse_output=True, **common)
    if body.images:
        raise InvalidField("images", f"{NO_IMAGES} in a prompt that is raw")
    if body.system:
        raise InvalidField("system", "is given, expected none with raw, or without chat template")
    return Generate(prompt=body.prompt, **common)


def _common(fields: Fields, body: OllamaGenerating, model: ServedModel) -> dict[str, Any]:
    """What the requests for both have in common.  Raises InvalidField."""
    fields.refuse(body)
    made = fields.options(body, model.card, has_sampling=True)
    sampling = {"max_tokens": None, **dict(model.card.sampling)}
    count = made.pop("logprobs", None)
    params = to_params(body.options, model.card, sampling, logprobs=count)
    has_tokens = params.logprobs is not None
    return {
        "params": params,
        "is_stream": True,
        "has_tokens": has_tokens,
        "adapter": model.adapter,
        **made,
    }
