"""Requests without a route: trailing slashes, OPTIONS, wrong methods and unknown paths.

Errors have the format of the protocol of the path, see `refusals`.
"""

from collections.abc import Sequence

from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from mindspore_serving.errors import NoRoute, WrongVerb
from mindspore_serving.frontends.refusals import refuse

_VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_OPENAI = ("/chat/completions", "/completions", "/responses", "/embeddings")  # after a base URL
_MAX_SHOWN = 100  # characters of a path


def without_slash(app: ASGIApp) -> ASGIApp:
    """Remove trailing slashes from paths for `app`, except from those of the classic protocol."""

    async def strip(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path.endswith("/") and not path.startswith("/model/"):
            scope["path"] = path.rstrip("/") or "/"
        await app(scope, receive, send)

    return strip


class Unrouted:
    """The last route: answers wrong methods of the paths of `routes`, and unknown paths."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope)(scope, receive, send)

    def _answer(self, scope: Scope) -> Response:
        path, verb = scope["path"], scope["method"]
        allowed = [other for other in _VERBS if self._matches({**scope, "method": other})]
        if allowed and verb == "OPTIONS":
            return Response(status_code=204, headers={"allow": ", ".join([*allowed, verb])})
        if allowed:
            text = f"the method is {verb}, expected {' or '.join(allowed)}"
            return refuse(scope, WrongVerb(text, allowed))
        text = f"there is no route {verb} {path[:_MAX_SHOWN]}"
        if path in _OPENAI and self._matches({**scope, "path": f"/v1{path}"}):
            path = f"/v1{path}"
            text += f", but {path}: the base URL of OpenAI's clients ends with /v1"
        return refuse(scope, NoRoute(text), path)

    def _matches(self, scope: Scope) -> bool:
        return any(route.matches(scope)[0] is Match.FULL for route in self._routes)
