"""Requests without a route: trailing slashes, OPTIONS, wrong methods and unknown paths.

Errors have the format of the protocol of the path, see `refusals`.
"""

from collections.abc import Sequence

from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from mindspore_serving.errors import NoRoute, WrongVerb, edit_distance
from mindspore_serving.frontends.refusals import refuse

_VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_OPENAI = ("/chat/completions", "/completions", "/responses", "/embeddings")  # after a base URL
_ANY = "/{path:path}"  # classic URLs with any beginning
_PREFIXES = ("/v1", "/v2", "/api")
_MAX_SHOWN = 100  # characters of a path
_MAX_SEGMENTS = 8
_MAX_NEAR = 16  # routes with nearly the same path that are tried


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
        near = self._find_near(scope) if len(path) <= _MAX_SHOWN else ""
        if near == f"/v1{path}" and path in _OPENAI:
            path = near
            text += f", but {path}: the base URL of OpenAI's clients ends with /v1"
        elif near:
            text += f"; did you mean {near}?"
        return refuse(scope, NoRoute(text), path)

    def _find_near(self, scope: Scope) -> str:
        """Return the path of a route that the client may have meant, "" if there is none.

        It has a beginning more or less, or a segment is misspelt.
        """
        segments = scope["path"][1:].split("/")
        if len(segments) > _MAX_SEGMENTS:
            return ""
        shorter = [
            "/" + "/".join(segments[start:]) for start in range(1, len(segments)) if segments[start]
        ]
        longer = [f"{prefix}{scope['path']}" for prefix in _PREFIXES]
        first = longer[:1] if scope["path"] in _OPENAI else []
        for path in (*first, *self._respell(segments), *shorter, *longer):
            declared = self._find(
                {**scope, "path": path, "raw_path": path.encode(errors="replace")}
            )
            if declared not in (None, _ANY):
                return path
        return ""

    def _respell(self, segments: list[str]) -> list[str]:
        """Return the paths of routes that are spelt nearly like `segments`, the nearest first."""
        near = set()
        for route in self._routes:
            declared = getattr(route, "path", "/")[1:].split("/")
            has_rest = declared[-1].endswith(":path}")
            if has_rest:
                declared += ["{}"] * (len(segments) - len(declared))
            if len(declared) == len(segments) and declared != [""]:
                pairs = list(zip(segments, declared, strict=True))
                edits = [0 if "{" in name else _edits(part, name) for part, name in pairs]
                if None not in edits:
                    path = "/".join(part if "{" in name else name for part, name in pairs)
                    near.add((sum(filter(None, edits)), has_rest, f"/{path}"))
        return [path for *_, path in sorted(near)[:_MAX_NEAR]]

    def _matches(self, scope: Scope) -> bool:
        return self._find(scope) is not None

    def _find(self, scope: Scope) -> str | None:
        """Return the declared path of the first route that matches, None if none does."""
        for route in self._routes:
            if route.matches(scope)[0] is Match.FULL:
                return str(getattr(route, "path", ""))
        return None


def _edits(segment: str, declared: str) -> int | None:
    """Return the edits between two segments, None for too many."""
    limit = len(declared) // 5
    edits = edit_distance(segment, declared, limit)
    return edits if edits <= limit else None
