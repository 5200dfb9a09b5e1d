"""The routes: bodies in, answers out, every request counted once."""

from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mindspore_serving import __version__
from mindspore_serving.core.llm_messages import Tokenize, Tokenized
from mindspore_serving.frontends.language import ServedModel
from mindspore_serving.frontends.site import Site
from mindspore_serving.frontends.terms import terms_of
from mindspore_serving.frontends.tgi.aliases import (
    DecliningRoute,
    Forwarded,
    invocations,
    other_path,
)
from mindspore_serving.frontends.tgi.answers import ChatTokenizeResponse, Info, SimpleToken, encode
from mindspore_serving.frontends.tgi.checks import RequestLimits, find_model
from mindspore_serving.frontends.tgi.errors import TgiError, WrongBody, to_tgi_error
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

Answer = Callable[[Request], Awaitable[Response]]


def routes(
    site: Site, limits: RequestLimits | None = None, recorder: Recorder | None = None
) -> list[BaseRoute]:
    """Every route but GET / and GET /health, which are others'.

    `recorder` counts what it shows as metrics.
    """
    limits, recorder = limits or RequestLimits(), recorder or Recorder()
    generating = Generating(site, limits, recorder)

    async def health(request: Request) -> Response:
        return root_health(site, request)

    return [
        Route("/", _guarded(generating.compat), methods=["POST"]),
        Route("/generate", _guarded(generating.generate), methods=["POST"]),
        Route("/generate_stream", _guarded(generating.generate_stream), methods=["POST"]),
        Route("/invocations", _guarded(invocations(site, generating)), methods=["POST"]),
        DecliningRoute(TOKENIZE, _guarded(_tokenize(site)), methods=["POST"]),
        Route("/chat_tokenize", _guarded(_chat_tokenize(site, recorder)), methods=["POST"]),
        Route("/info", _guarded(_info(site, limits)), methods=["GET"]),
        Route("/ping", _guarded(health), methods=["GET"]),
    ]


def root_health(site: Site, request: Request) -> Response:
    """An empty body if everything can be called, else 503 and the reason in JSON."""
    if site.control.is_ready:
        return Response()
    return TgiError(503, "healthcheck", "unhealthy", "1").to_response()


def _guarded(answer: Answer) -> Answer:
    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except WrongBody as error:
            return error.to_response()
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            return to_tgi_error(error).to_response()

    return endpoint


def _info(site: Site, limits: RequestLimits) -> Answer:
    async def answer(_: Request) -> Response:
        model = find_model(site.models, None)
        card = model.card
        return _json(
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

    return answer


def _tokenize(site: Site) -> Answer:
    async def answer(request: Request) -> Response:
        body = await read_limited(request, site)
        path = other_path(body, TOKENIZE, TOKENIZE)
        if path:
            return Forwarded(body, path)
        check_type(request)
        found = decode(body, GENERATE)
        model = find_model(site.models, found.parameters.adapter_id)
        tokens, _ = await _tokens(request, model, Tokenize(prompt=found.inputs))
        truncate = found.parameters.truncate
        return _json(tokens[-truncate:] if truncate else tokens)

    return answer


def _chat_tokenize(site: Site, recorder: Recorder) -> Answer:
    async def answer(request: Request) -> Response:
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
        return _json(ChatTokenizeResponse(tokens, text))

    return answer


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


def _json(found: object) -> Response:
    return Response(encode(found), media_type="application/json")
