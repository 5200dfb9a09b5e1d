"""The routes: bodies in, answers out, every request counted once."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from mindspore_serving import __version__
from mindspore_serving.core.llm_messages import Tokenize, Tokenized
from mindspore_serving.frontends.chat.endpoint import Endpoints
from mindspore_serving.frontends.chat.models import ServedModel
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.site import Site
from mindspore_serving.frontends.terms import terms_of
from mindspore_serving.frontends.tgi.aliases import (
    DecliningRoute,
    Forwarded,
    invocations,
    other_path,
)
from mindspore_serving.frontends.tgi.answers import ChatTokenizeResponse, Info, SimpleToken
from mindspore_serving.frontends.tgi.checks import RequestLimits, find_model
from mindspore_serving.frontends.tgi.errors import TgiError, to_response
from mindspore_serving.frontends.tgi.generating import Generating
from mindspore_serving.frontends.tgi.metrics import Recorder
from mindspore_serving.frontends.tgi.requests import (
    CHAT,
    GENERATE,
    check_type,
    decode,
    read_json,
    read_limited,
)

TOKENIZE = "/tokenize"  # where vLLM's protocol has a route too
PREPARE_THREADS = 2  # of a worker, which look at prompts

_ENDPOINTS = Endpoints(to_response)


def routes(
    site: Site, limits: RequestLimits | None = None, recorder: Recorder | None = None
) -> list[BaseRoute]:
    """Every route but GET / and GET /health, which are others'.

    `recorder` counts what it shows as metrics.
    """
    limits, recorder = limits or RequestLimits(), recorder or Recorder()
    generating = Generating(site, limits, recorder)

    get, post = _ENDPOINTS.get, _ENDPOINTS.post_raw
    tokenize = _ENDPOINTS.guarded(partial(_tokenize, site))
    return [
        post("/", generating.compat),
        post("/generate", generating.generate),
        post("/generate_stream", generating.generate_stream),
        post("/invocations", partial(invocations, site, generating)),
        DecliningRoute(TOKENIZE, tokenize, methods=["POST"]),
        post("/chat_tokenize", partial(_chat_tokenize, site, recorder)),
        get("/info", partial(_info, site, limits)),
        get("/ping", partial(root_health, site)),
    ]


async def root_health(site: Site, _: Request) -> Response:
    """An empty body if everything can be called, else 503 and the reason in JSON."""
    if site.control.is_ready:
        return Response()
    return TgiError(503, "healthcheck", "unhealthy", "1").to_response()


async def _info(site: Site, limits: RequestLimits, _: Request) -> Response:
    model = find_model(site.models, None)
    card = model.card
    return to_json(
        Info(
            model_id=model.name,
            model_pipeline_tag="text-generation" if card.can_generate else None,
            max_concurrent_requests=limits.max_concurrent_requests,
            max_best_of=limits.max_best_of,
            max_stop_sequences=limits.max_stop_sequences,
            max_input_tokens=card.max_model_len - 1,
            max_total_tokens=card.max_model_len,
            validation_workers=PREPARE_THREADS,
            max_client_batch_size=limits.max_client_batch_size,
            router="mindspore-serving",
            version=__version__,
        )
    )


async def _tokenize(site: Site, request: Request) -> Response:
    body = await read_limited(request, site)
    path = other_path(body, TOKENIZE, TOKENIZE)
    if path:
        return Forwarded(body, path)
    check_type(request)
    found = decode(body, GENERATE)
    model = find_model(site.models, found.parameters.adapter_id)
    tokens, _ = await _tokens(request, model, Tokenize(prompt=found.inputs))
    truncate = found.parameters.truncate
    return to_json(tokens[-truncate:] if truncate else tokens)


async def _chat_tokenize(site: Site, recorder: Recorder, request: Request) -> Response:
    body = decode(await read_json(request, site), CHAT)
    recorder.count_request()
    if body.response_format:
        body.response_format.to_grammar()  # to refuse a wrong one
    if body.tools and body.response_format:
        text = "Tool error: Grammar and tools are mutually exclusive"
        raise TgiError(422, "tool_error", text)
    model = find_model(site.models, body.model)
    conversation = Tokenize(messages=body.messages, tools=body.tools, add_special=False)
    tokens, text = await _tokens(request, model, conversation)
    return to_json(ChatTokenizeResponse(tokens, text))


async def _tokens(
    http: Request, model: ServedModel, request: Tokenize
) -> tuple[list[SimpleToken], str]:
    found = await model.call(request, Tokenized, terms_of(http))
    text = found.text
    tokens = [
        SimpleToken(token.id, text[start:stop], start, stop)
        for token, (start, stop) in zip(found.tokens, found.offsets, strict=True)
    ]
    return tokens, text
