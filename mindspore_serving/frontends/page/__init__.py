"""Page at `/` for browsers: a chat, and a live view of the servables.

The page consists of the files in `static/`, unchanged: no build step, no external resources.  It
uses the same HTTP interfaces as every client.  Knows no model: it needs no `AppState`, no API key.
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

_STATIC = Path(__file__).parent / "static"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "woff2": "font/woff2",
}
_MODULES = b"<!-- modules -->"
_NOT_AT_ONCE = ("docs/", "theme.", "vendor/highlight/", "vendor/pdf/", "vendor/temml/")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # cached, but revalidated, so that an upgrade takes effect
}


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    headers: dict[str, str]


def wants_page(request: Request) -> bool:
    """Return whether a GET of `/` comes from a browser."""
    return "text/html" in request.headers.get("accept", "").lower()


def show_page(request: Request) -> Response:
    """Return the page."""
    return show(request, "page.html")


def show_file(request: Request) -> Response:
    """Return a file of the page.

    The files hold no secrets: users type their key into the page.
    """
    name = request.path_params["name"]
    if name not in _files():
        return Response("no such file\n", 404, media_type="text/plain")
    return show(request, name)


def show(request: Request, name: str) -> Response:
    """Return a file of `static/`, or 304 if the browser's copy is current."""
    file = _files()[name]
    if request.headers.get("if-none-match") == file.headers["etag"]:
        return Response(status_code=304, headers=file.headers)
    return Response(file.body, headers=file.headers)


@lru_cache(maxsize=1)
def _files() -> dict[str, _File]:
    """Return all files of `static/` by path, read once; no other file can be requested."""
    paths = [path for path in _STATIC.rglob("*") if path.suffix[1:] in _TYPES]
    return {path.relative_to(_STATIC).as_posix(): _read(path) for path in paths}


@lru_cache(maxsize=1)
def _preloads() -> bytes:
    """Return links to the page's modules, so that browsers load them at once instead of in turn.

    Libraries in a folder of `vendor` are loaded when an answer or a file needs them.
    """
    names = (path.relative_to(_STATIC).as_posix() for path in _STATIC.rglob("*.js"))
    modules = sorted(name for name in names if not name.startswith(_NOT_AT_ONCE))
    links = (f'<link rel="modulepreload" href="page/{name}">' for name in modules)
    return "\n  ".join(links).encode()


def _read(path: Path) -> _File:
    body = path.read_bytes().replace(_MODULES, _preloads())
    etag = f'"{sha256(body).hexdigest()[:16]}"'
    kind = _TYPES[path.suffix[1:]]
    return _File(body, {**_HEADERS, "content-type": kind, "etag": etag})
