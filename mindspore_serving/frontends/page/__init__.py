"""The page at `/`, for people with a browser: a chat, and a live view of what is served.

The page is files of `static/`, as they are: no build step, nothing from elsewhere.  It talks to the
same HTTP interfaces as every client.  Knows no model: it needs neither `AppState` nor an API key.
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
}
_MODULES = b"<!-- modules -->"
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


def wants_page(request: Request) -> bool:
    """Whether a GET of `/` comes from a browser."""
    return "text/html" in request.headers.get("accept", "").lower()


def show_page(request: Request) -> Response:
    return show(request, "page.html")


def show_file(request: Request) -> Response:
    """GET /page/NAME for each file.  They hold no secrets: people type their key into the page."""
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
    """Everything in `static/` by its path there, read once: no other file can be requested."""
    found = [path for path in _STATIC.rglob("*") if path.suffix[1:] in _TYPES]
    return {path.relative_to(_STATIC).as_posix(): _read(path) for path in found}


@lru_cache(maxsize=1)
def _preloads() -> bytes:
    """Links to the modules of the page: a browser loads them at once, not as each names others."""
    names = (path.relative_to(_STATIC).as_posix() for path in _STATIC.rglob("*.js"))
    modules = sorted(name for name in names if not name.startswith(("docs/", "theme.")))
    return "\n  ".join(f'<link rel="modulepreload" href="page/{one}">' for one in modules).encode()


def _read(path: Path) -> _File:
    body = path.read_bytes().replace(_MODULES, _preloads())
    etag = f'"{sha256(body).hexdigest()[:16]}"'
    kind = _TYPES[path.suffix[1:]]
    return _File(body, {**_HEADERS, "content-type": kind, "etag": etag})
