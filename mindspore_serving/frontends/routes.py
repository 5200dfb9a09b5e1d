"""A route is one row, from which follow the router, the gate, the form of errors, the labels of
metrics and the document.

The only place that makes routes of Starlette.  Knows no protocol and no handler.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from inspect import isawaitable
from typing import Any

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
from mindspore_serving.frontends.operation import Body, Kind

_PARAMETER = "{"  # a segment
_BOUND = "mindspore_serving.bound"
ROUTE = "mindspore_serving.route"  # in a scope: the path of the route that answers, as declared
GENERATING, EMBEDDING = "@generate", "@embed"  # methods of language models
LANGUAGE, LOADING, MEMORY = "language", "loading", "memory"
"""What a server may have: language models, clients that load models, clients' shared memory."""

Handler = Callable[..., Any]
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, eq=False)
class HttpProtocol:
    """What the routes of a protocol share.

    `name` is its label in metrics and in the access log; a document shows `title`, `about`, and
    `errors` by media type.  `to_response` writes an error while it is handled, `to_refusal` one
    that is met before any route, if that differs.
    """

    name: str
    to_response: Callable[[Exception], Response]
    to_refusal: Callable[[ServingError], Response] | None = None
    title: str = ""
    about: str = ""
    errors: Mapping[str, Kind] = field(default_factory=dict)

    def refuse(self, error: ServingError) -> Response:
        """The answer to a request that no route has taken."""
        return (self.to_refusal or self.to_response)(error)


@dataclass(frozen=True, slots=True, eq=False)
class HttpRoute:
    """A route: who may ask, what answers, and what it takes and answers, as in an `Operation`.

    `handler` gives a response, what is one as JSON, or None, at once or when awaited.  It gets the
    context of its protocol, the request and, if it `decodes`, the body as
    `body.kind`; fields that its table does not know are named in the answer then, behind those that
    `find_ignored` gives.  The route exists only for what `is_meant` accepts, which gets the context
    and the scope.

    It needs a key unless it `is_open`.  Unless it `takes_text`, a form of a web page of another
    site, whose content type can be text/plain, is refused.  It is described only where the server
    has what it `needs`.  `refused_early` is the method of language models that it calls: if none
    has room, its body is not read.
    """

    verb: str
    path: str
    handler: Handler
    summary: str = ""
    answers: Mapping[str, Kind] = field(default_factory=dict)
    _: KW_ONLY
    protocol: HttpProtocol
    body: Body | None = None
    others: Mapping[str, Mapping[str, Kind]] = field(default_factory=dict)
    query: tuple[str, ...] = ()
    is_open: bool = False
    decodes: bool = False
    find_ignored: Callable[[Any], Iterable[str]] | None = None
    is_meant: Callable[[Any, Scope], bool] | None = None
    takes_text: bool = False
    needs: str = ""
    refused_early: str = ""


def bind(rows: Iterable[HttpRoute], context: Any) -> list[BaseRoute]:
    """Routes whose handlers get `context`."""
    return [_Bound(row, context) for row in rows]


def to_app(routes: Sequence[BaseRoute], others: ASGIApp) -> ASGIApp:
    """The application of `routes`, of which the first that fits answers; what is left is `others`'
    to answer.
    """
    return Starlette(routes=[_Routes(routes), routing.Route("/{path:path}", others)])


class _Routes(BaseRoute):
    """Routes as one, which asks those alone whose first segment is that of a request's path."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        firsts = [(_first_segment(getattr(one, "path", "/{")), one) for one in routes]
        self._by_first = {
            name: [one for first, one in firsts if first in (name, _PARAMETER)]
            for name, _ in (*firsts, (_PARAMETER, None))
        }

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        routes = self._by_first
        for route in routes.get(_first_segment(scope["path"])) or routes[_PARAMETER]:
            match, found = route.matches(scope)
            if match is Match.FULL:
                return match, {**found, _BOUND: route}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope[_BOUND].handle(scope, receive, send)


def _first_segment(path: str) -> str:
    first = path[1:].partition("/")[0]
    return _PARAMETER if first.startswith("{") else first


class _Bound(routing.Route):
    """A row with the context that its handler gets."""

    def __init__(self, row: HttpRoute, context: Any) -> None:
        super().__init__(row.path, _endpoint(row, context), methods=[row.verb])
        self._is_meant = row.is_meant
        self._context = context

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        if match is Match.NONE or self._is_meant and not self._is_meant(self._context, scope):
            return Match.NONE, {}
        return match, {**found, ROUTE: self.path_format}


def _endpoint(row: HttpRoute, context: Any) -> Endpoint:
    handle = _decoding(row, context) if row.decodes else None

    async def endpoint(request: Request) -> Response:
        try:
            found = handle(request) if handle else row.handler(context, request)
            return to_answer(await found if isawaitable(found) else found)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:
            return row.protocol.to_response(error)

    return endpoint


def _decoding(row: HttpRoute, context: Any) -> Endpoint:
    """Reads the body and decodes it; names the fields that nobody knows in the answer."""
    assert row.body is not None
    kind, table = row.body.read_as or row.body.kind, row.body.fields.get(row.body.kind)
    fields = KnownFields(row.path, kind, table.ignored if isinstance(table, Fields) else ())

    async def decoded(request: Request) -> Response:
        body = await read_json(request, context.max_body, context.models.limits)
        unknown = fields.find_unknown(body)
        given = decode(body, kind)
        ignored = [*(row.find_ignored(given) if row.find_ignored else ()), *unknown]
        response = to_answer(await row.handler(context, request, given))
        name_ignored(response, ignored)
        return response

    return decoded
