"""The page at `/`, for people with a browser: a chat, and a live view of what is served.

The page is files of `static/`, as they are: no build step, nothing from elsewhere.  It talks to the
same HTTP interfaces as every client.  Knows no model: it needs neither `Site` nor an API key.
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mindspore_serving.frontends.site import Site

# Relative to `/`, so that it works below any path that a proxy puts in front.
PREFIX = "/page/"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # kept, but checked each time, so that an upgrade is seen
}


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    headers: dict[str, str]


def routes(_: Site | None = None) -> list[BaseRoute]:
    """What the page loads: GET /page/NAME for each file.  They hold no secrets and need no API
    key, like `show_page`: people type their key into the page."""
    return [Route(PREFIX + "{name}", _show_file, methods=["GET"])]


def wants_page(request: Request) -> bool:
    """Whether a GET of `/` comes from a browser."""
    return "text/html" in request.headers.get("accept", "").lower()


def show_page(request: Request) -> Response:
    """The page itself."""
    return show(request, "page.html")


def _show_file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _files():
        return Response("no such file\n", 404, media_type="text/plain")
    return show(request, name)


def show(request: Request, name: str) -> Response:
    """A file of `static/`."""
    file = _files()[name]
    if request.headers.get("if-none-match") == file.headers["etag"]:
        return Response(status_code=304, headers=file.headers)
    return Response(file.body, headers=file.headers)


@lru_cache(maxsize=1)
def _files() -> dict[str, _File]:
    """Everything in `static/` by name, read once: no other file can be requested."""
    found = {}
    for path in (files(__name__) / "static").iterdir():
        kind = _TYPES.get(path.name.rpartition(".")[2])
        if kind is not None:
            body = path.read_bytes()
            etag = f'"{sha256(body).hexdigest()[:16]}"'
            found[path.name] = _File(body, {**_HEADERS, "content-type": kind, "etag": etag})
    return found
