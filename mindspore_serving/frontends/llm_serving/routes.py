"""The routes: POST /models/NAME and below it, GET /serving/...."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mindspore_serving import log
from mindspore_serving.errors import InvalidInputs, NotFound, Overloaded, ServingError, TooLarge
from mindspore_serving.frontends.bodies import read_body
from mindspore_serving.frontends.disconnect import Owned, while_there
from mindspore_serving.frontends.language import LanguageModel, LanguageModels, RefusedError, Stream
from mindspore_serving.frontends.llm_serving.frames import Form, Frames, frames_of
from mindspore_serving.frontends.llm_serving.requests import (
    ClientRequest,
    Parameters,
    WrongRequest,
    decode,
    to_detail,
)
from mindspore_serving.frontends.llm_serving.sampling import to_ask
from mindspore_serving.frontends.llm_serving.status import status_routes
from mindspore_serving.frontends.llm_serving.writing import Writer, pieces_of, to_fault
from mindspore_serving.frontends.site import Site
from mindspore_serving.frontends.sse import EventStream

ALIASES = ("llama2", "internlm")  # of the only model, unless one is really called so

Answer = Callable[[Request], Awaitable[Response]]


def routes(site: Site, form: Form = "r21") -> list[BaseRoute]:
    """`form` is that of streams: "r21", the first release's, or "bare", the later one's."""

    async def either(request: Request) -> Response:
        asked = await _read(request, site)
        return await _answer(site, form, request, asked)

    async def whole(request: Request) -> Response:
        asked = await _read(request, site)
        asked.stream = False
        return await _answer(site, form, request, asked)

    async def stream(request: Request) -> Response:
        asked = await _read(request, site)
        asked.stream = True
        return await _answer(site, form, request, asked)

    return [
        Route("/models/{name}", _guarded(either), methods=["POST"]),
        Route("/models/{name}/generate", _guarded(whole), methods=["POST"]),
        Route("/models/{name}/generate_stream", _guarded(stream), methods=["POST"]),
        *status_routes(site),
    ]


def find_model(models: LanguageModels, name: str) -> LanguageModel:
    """Raises NotFound."""
    try:
        return models.find(name)
    except NotFound:
        if name not in ALIASES:
            raise
        return models.find(None)


def _guarded(answer: Answer) -> Answer:
    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except WrongRequest as error:
            return error.to_response()
        except ServingError as error:
            return _to_response(error)
        except Exception:
            log.error("answering a request", exc_info=True)
            return to_detail(500, "the server failed; its log says why")

    return endpoint


def _to_response(error: ServingError) -> Response:
    is_refused = isinstance(error, RefusedError) and error.refused.reason == "overloaded"
    if is_refused or isinstance(error, Overloaded):
        response = to_detail(429, str(error))
        response.headers["retry-after"] = "1"
        return response
    if isinstance(error, NotFound):
        return to_detail(404, str(error))
    if isinstance(error, TooLarge):
        return to_detail(413, str(error))
    if isinstance(error, InvalidInputs):
        return WrongRequest(str(error)).to_response()
    return to_detail(500, str(error))


async def _read(request: Request, site: Site) -> ClientRequest:
    return decode(await read_body(request, site.max_body))


async def _answer(site: Site, form: Form, request: Request, asked: ClientRequest) -> Response:
    model = find_model(site.models, request.path_params["name"])
    given = asked.parameters or Parameters()
    ask = to_ask(asked, model, is_stream=asked.stream)
    writer = Writer(None, given.seed or 0, bool(given.details))
    with ExitStack() as stack:
        stream = stack.enter_context(model.generate(ask))
        try:
            writer.begun = await while_there(request, stream.begin())
        except ServingError as error:
            writer.fail(to_fault(error))
        if not asked.stream:
            await while_there(request, _gather(stream, writer))
            body = writer.whole().to_json() + b"\n"
            return Response(body, media_type="application/json")
        frames = frames_of(form, given.return_protocol)
        events = _events(stream, writer, frames, has_last=bool(given.return_full_text))
        owned = Owned(events, stack.pop_all())
        return EventStream(owned, frames.headers, ping=frames.ping)


async def _gather(stream: Stream, writer: Writer) -> None:
    if writer.begun is not None:
        async for piece in pieces_of(stream, writer):
            writer.write_whole(piece)


async def _events(
    stream: Stream, writer: Writer, frames: Frames, *, has_last: bool
) -> AsyncIterator[bytes]:
    count = 0
    for count, shown in enumerate(writer.tokens, 1):  # why the request was not taken
        yield frames.piece(count, shown)
    if writer.begun is not None:
        async for piece in pieces_of(stream, writer):
            chunk = b""
            for shown in writer.write(piece):
                count += 1
                chunk += frames.piece(count, shown)
            if chunk:
                yield chunk
    if has_last:
        yield frames.last(writer.whole())
