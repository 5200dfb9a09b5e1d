"""What every route of a protocol for language models does around its answer: read the body, decode
it, answer errors, name the fields that were ignored.  Knows no protocol's errors.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from mindspore_serving.frontends.bodies import read_json
from mindspore_serving.frontends.chat.unknown_fields import HEADER, KnownFields
from mindspore_serving.frontends.decoding import decode
from mindspore_serving.frontends.site import Site

Answer = Callable[[Request], Awaitable[Response]]
Body = TypeVar("Body", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Makes the routes of a protocol; `to_response` writes its errors, each while it is handled."""

    to_response: Callable[[Exception], Response]

    def get(self, path: str, answer: Answer) -> Route:
        return self.route(path, ["GET"], answer)

    def post_raw(self, path: str, answer: Answer) -> Route:
        """A route for POST of a body that `answer` reads itself."""
        return self.route(path, ["POST"], answer)

    def post(
        self,
        site: Site,
        path: str,
        kind: type[Body],
        answer: Callable[[Site, Request, Body], Awaitable[Response]],
        ignored: Iterable[str] = (),
    ) -> Route:
        """A route for POST of a JSON body that is a `kind`, a struct; fields that are `ignored` are
        known, others are named in the answer."""
        fields = KnownFields(path, kind, ignored)

        async def decoded(request: Request) -> Response:
            body = await read_json(request, site.max_body, site.models.limits)
            unknown = fields.find_unknown(body)
            response = await answer(site, request, decode(body, kind))
            name_ignored(response, unknown)
            return response

        return self.post_raw(path, decoded)

    def route(self, path: str, verbs: list[str], answer: Answer) -> Route:
        """A route whose body `answer` reads itself, if there is one."""
        return Route(path, self.guarded(answer), methods=verbs)

    def guarded(self, answer: Answer) -> Answer:
        """`answer`, and what says why there is none."""

        async def endpoint(request: Request) -> Response:
            try:
                return await answer(request)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                return self.to_response(error)

        return endpoint


class RouteIf(BaseRoute):
    """A route that exists only for requests that `is_meant` accepts."""

    def __init__(self, route: BaseRoute, is_meant: Callable[[Scope], bool]) -> None:
        self.route = route
        self._is_meant = is_meant

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match = self.route.matches(scope)
        return match if match[0] is Match.NONE or self._is_meant(scope) else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.route.handle(scope, receive, send)


def name_ignored(response: Response, fields: Iterable[str]) -> None:
    """Name `fields` in the answer, behind others that it names."""
    named = [response.headers[HEADER]] if HEADER in response.headers else []
    if found := [*named, *fields]:
        response.headers[HEADER] = ", ".join(found)
