"""POST /v1/models/MODEL:generateContent, :streamGenerateContent and :countTokens."""

from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.llm_messages import Generate, Tokenize, Tokenized
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.errors import renaming_fields
from mindspore_serving.frontends.chat.fields import capped_header, unexpected
from mindspore_serving.frontends.chat.messages import to_template
from mindspore_serving.frontends.chat.models import Generation, ServedModel, find_generator
from mindspore_serving.frontends.disconnect import OwnedStream, while_connected
from mindspore_serving.frontends.gemini.answers import TokenCount
from mindspore_serving.frontends.gemini.conversation import to_messages
from mindspore_serving.frontends.gemini.errors import to_element, to_event
from mindspore_serving.frontends.gemini.fields import CONTENT, GENERATION
from mindspore_serving.frontends.gemini.requests import (
    CountTokensRequest,
    GenerateContentRequest,
    GenerationConfig,
)
from mindspore_serving.frontends.gemini.tools import read_tools
from mindspore_serving.frontends.gemini.writing import GeminiAnswerBuilder, collect
from mindspore_serving.frontends.operation import JSON
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.sse import EventStream

_CONFIG = "generationConfig"


async def generate(state: AppState, http: Request, body: GenerateContentRequest) -> Response:
    """Answer with one object."""
    with ExitStack() as stack:
        generation, builder, headers = await _begin(state, http, body, stack)
        answer = await while_connected(http, collect(generation, builder))
    return Response(answer, 200, headers, JSON)


async def stream(state: AppState, http: Request, body: GenerateContentRequest) -> Response:
    """Answer with a stream: of events with `alt=sse`, else an array of JSON that is sent in parts.

    An error in an array is its last element.
    """
    form = http.query_params.get("alt", "json")
    if form not in ("json", "sse"):
        raise unexpected("alt", form, "sse or json")
    with ExitStack() as stack:
        generation, builder, headers = await _begin(state, http, body, stack, is_stream=True)
        if form == "sse":
            events = generation.stream_bytes(b"", builder.write_event, to_event)
            # Google's library for JavaScript reads no comments: a blank line keeps the connection.
            return EventStream(OwnedStream(events, stack.pop_all()), headers, ping=b"\n\n")
        elements = generation.stream_bytes(
            b"[", builder.write_element, lambda error: to_element(error) + b"]"
        )
        owned = OwnedStream(elements, stack.pop_all())
        return EventStream(owned, headers, media_type=JSON, ping=b" ")


async def count(state: AppState, http: Request, body: CountTokensRequest) -> TokenCount:
    """Count the tokens that the model reads."""
    sent = body.generateContentRequest
    if sent is None:
        if body.contents is None:
            raise InvalidField("contents", "is missing")
        sent = GenerateContentRequest(contents=body.contents)
    model = find_generator(state.models, http.path_params["name"])
    request = to_request(sent, model)
    tokenize = Tokenize(
        messages=request.messages,
        tools=request.tools or [],
        tool_choice=request.tool_choice,
        template_options=request.template_options,
    )
    with renaming_fields("contents", CONTENT, sent):
        tokenized = await while_connected(
            http, model.call(tokenize, Tokenized, request_options_of(http))
        )
    return TokenCount(len(tokenized.tokens))


async def _begin(
    state: AppState,
    http: Request,
    body: GenerateContentRequest,
    stack: ExitStack,
    *,
    is_stream: bool = False,
) -> tuple[Generation, GeminiAnswerBuilder, dict[str, str]]:
    """Start a generation in `stack`; return it, the builder of its answer, and headers."""
    model = find_generator(state.models, http.path_params["name"])
    request = to_request(body, model, is_stream=is_stream)
    with renaming_fields("contents", GENERATION, _config(body)):
        generation = stack.enter_context(model.generate(request, request_options_of(http)))
        started = await while_connected(http, generation.begin())
    config = _config(body)
    thinking = config.thinkingConfig
    builder = GeminiAnswerBuilder(
        model.name,
        started.num_prompt_tokens,
        request.params.n,
        shows_thoughts=bool(thinking and thinking.includeThoughts),
    )
    is_limited = config.maxOutputTokens is not None  # type: ignore[attr-defined]
    return (
        generation,
        builder,
        capped_header(f"{_CONFIG}.maxOutputTokens" if is_limited else "", started),
    )


def to_request(
    body: GenerateContentRequest, model: ServedModel, *, is_stream: bool = False
) -> Generate:
    """Translate the body to the request to the model.  Raises InvalidField."""
    CONTENT.refuse(body)
    config, card = _config(body), model.card
    tools, choice = read_tools(body)
    messages = to_messages(body, card)
    if not messages:
        raise InvalidField("contents", "has no text, expected at least one")
    try:
        GENERATION.refuse(config)
        params = GENERATION.params(config, card, {"max_tokens": None, **card.defaults})
        options = GENERATION.options(config, card)
    except InvalidField as error:
        raise error.renamed(f"{_CONFIG}.{error.field}") from None
    if messages[-1].role == "assistant":
        off = dict.fromkeys(("enable_thinking", "thinking"), False)
        options["template_options"] = {"continue_final_message": True, **off}
    return Generate(
        messages=to_template(messages, card),
        tools=tools or None,
        tool_choice=choice,
        parse_output=True,
        params=params,
        is_stream=is_stream,
        has_tokens=params.logprobs is not None,
        adapter=model.adapter,
        **options,
    )


def _config(body: GenerateContentRequest) -> GenerationConfig:
    return body.generationConfig or GenerationConfig()
