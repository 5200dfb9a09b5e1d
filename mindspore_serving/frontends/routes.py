"""Routes as rows of a table: routing, access, error format, metrics and OpenAPI follow from a row.

Only this module makes Starlette's routes.  Knows no protocol and no handler.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from inspect import isawaitable
from typing import Any, get_args

import msgspec
from starlette import routing
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.bodies import read_json
from mindspore_serving.frontends.chat.fields import Fields
from mindspore_serving.frontends.chat.unknown_fields import KnownFields, name_ignored
from mindspore_serving.frontends.decoding import decode
from mindspore_serving.frontends.json_answer import to_answer
from mindspore_serving.frontends.operation import Body, Kind, Lax, Unlimited

_PARAMETER = "{"  # key of a segment that is a parameter
_BOUND = "mindspore_serving.bound"
ROUTE = "mindspore_serving.route"  # key in a scope: the path of its route, as declared
GENERATING, EMBEDDING = "@generate", "@embed"  # methods of language models
LANGUAGE, LOADING, MEMORY = "language", "loading", "memory"
"""Optional features of a server: language models, loading by clients, shared memory of clients."""

Handler = Callable[..., Any]
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, eq=False)
class HttpProtocol:
    """A protocol of HTTP: what its routes have in common.

    `name` is its label in metrics and in the access log.  OpenAPI shows `title`, `about` (its
    description) and `errors` (types by media type).  `to_response` makes the answer for an
    exception, within its except block; `to_refusal` that for an error before any route, if it
    differs.
    """

    name: str
    to_response: Callable[[Exception], Response]
    to_refusal: Callable[[ServingError], Response] | None = None
    title: str = ""
    about: str = ""
    errors: Mapping[str, Kind] = field(default_factory=dict)

    def refuse(self, error: ServingError) -> Response:
        """Return the answer to a request that is refused before any route."""
        return (self.to_refusal or self.to_response)(error)


@dataclass(frozen=True, slots=True, eq=False)
class HttpRoute:
    """A route: method and path, access, handler, and its request and answers as in `Operation`.

    `handler`, maybe a coroutine, is called with the context of its protocol and the request.  It
    returns a response, an object that is encoded as JSON, or None for an empty answer.
    With `decodes` its third argument is the body, decoded as `body.kind`; a header of the answer
    then names the fields that are ignored: those of `find_ignored`, and those that the tables of
    `body.fields` do not have.
    `applies(context, scope)` decides whether the route exists for a request.

    A key is needed unless `is_open`.  Requests with the content type text/plain, which a form of
    another site's web page can send, are refused unless `accepts_text_plain`.  The route is
    described only if the server has the feature that it `needs`.  `refused_early` is the method of
    language models that it calls: if no model has room, the body is not read.  A client may go on
    with a WebSocket if the route `is_websocket`; its handler then returns a `WebSocketAnswer`.
    """

    verb: str
    path: str
    handler: Handler
    summary: str = ""
    answers: Mapping[str, Kind] = field(default_factory=dict)
    _: KW_ONLY
    protocol: HttpProtocol
    body: Body | None = None
    other_answers: Mapping[str, Mapping[str, Kind]] = field(default_factory=dict)
    query: tuple[str, ...] = ()
    is_open: bool = False
    decodes: bool = False
    find_ignored: Callable[[Any], Iterable[str]] | None = None
    applies: Callable[[Any, Scope], bool] | None = None
    accepts_text_plain: bool = False
    needs: str = ""
    refused_early: str = ""
    is_websocket: bool = False


def bind(rows: Iterable[HttpRoute], context: Any) -> list[BaseRoute]:
    """Make Starlette's routes, whose handlers are called with `context`."""
    return [_Bound(row, context) for row in rows]


def to_app(routes: Sequence[BaseRoute], fallback: ASGIApp) -> ASGIApp:
    """Return an application of `routes`, the first that matches, and `fallback`."""
    return Starlette(routes=[_Routes(routes), routing.Route("/{path:path}", fallback)])


class _Routes(BaseRoute):
    """Routes as one route, indexed by the first segment of their paths."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        firsts = [(_first_segment(getattr(route, "path", "/{")), route) for route in routes]
        self._by_first = {
            name: [route for first, route in firsts if first in (name, _PARAMETER)]
            for name, _ in (*firsts, (_PARAMETER, None))
        }

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        routes = self._by_first
        for route in routes.get(_first_segment(scope["path"])) or routes[_PARAMETER]:
            match, matched = route.matches(scope)
            if match is Match.FULL:
                return match, {**matched, _BOUND: route}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope[_BOUND].handle(scope, receive, send)


def _first_segment(path: str) -> str:
    first = path[1:].partition("/")[0]
    return _PARAMETER if first.startswith("{") else first


class _Bound(routing.Route):
    """A Starlette route of a row and its context."""

    def __init__(self, row: HttpRoute, context: Any) -> None:
        super().__init__(row.path, _endpoint(row, context), methods=[row.verb])
        self._is_meant = row.applies
        self._context = context

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, matched = super().matches(scope)
        if match is Match.NONE or self._is_meant and not self._is_meant(self._context, scope):
            return Match.NONE, {}
        return match, {**matched, ROUTE: self.path_format}


def _endpoint(row: HttpRoute, context: Any) -> Endpoint:
    handle = _decoding(row, context) if row.decodes else None

    async def endpoint(request: Request) -> Response:
        try:
            result = handle(request) if handle else row.handler(context, request)
            return to_answer(await result if isawaitable(result) else result)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            return row.protocol.to_response(error)

    return endpoint


def _decoding(row: HttpRoute, context: Any) -> Endpoint:
    """Return an endpoint that decodes the body; a header of its answer names ignored fields."""
    assert row.body is not None
    kind, fields = row.body.read_as or row.body.kind, _known_fields(row.path, row.body)
    respell = row.body.respell

    async def endpoint(request: Request) -> Response:
        body = await read_json(request, context.max_body, context.models.limits)
        body = respell(body, kind) if respell else body
        unknown = fields.find_unknown(body)
        decoded = decode(body, kind)
        ignored = [*(row.find_ignored(decoded) if row.find_ignored else ()), *unknown]
        response = to_answer(await row.handler(context, request, decoded))
        name_ignored(response, ignored)
        return response

    return endpoint


def _known_fields(path: str, body: Body) -> KnownFields:
    """Return the fields of `body`, and of the structs in its fields that have a table."""
    inside = {
        field.encode_name: KnownFields(f"{path}, {field.name}", kind, _ignored_in(body, kind))
        for field in msgspec.structs.fields(body.kind)
        for kind in (field.type, *get_args(field.type))
        if isinstance(kind, type) and kind in body.fields
    }
    return KnownFields(path, body.read_as or body.kind, _ignored_in(body, body.kind), inside=inside)


def _ignored_in(body: Body, kind: type) -> tuple[str, ...]:
    table = body.fields.get(kind)
    table = table.table if isinstance(table, Lax | Unlimited) else table
    return table.ignored if isinstance(table, Fields) else ()
