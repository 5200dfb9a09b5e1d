"""Headers that are those of no protocol: of HTTP, or metadata of gRPC."""

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar

from mindspore_serving.core.service import Reply

CACHE = "x-cache"
VERSION = "x-model-version"

current: ContextVar[Callable[[Mapping[str, str]], object] | None] = ContextVar(
    "answer_headers", default=None
)
"""Function that adds headers to the answer of this task's request."""


def headers_of(reply: Reply) -> dict[str, str]:
    """Return the headers of a reply.

    They are of a method with a cache of answers, and of a version that a traffic rule has chosen.
    """
    headers = {CACHE: reply.cache} if reply.cache else {}
    if reply.version:
        headers[VERSION] = str(reply.version)
    return headers


def note(reply: Reply) -> None:
    """Add the headers of a reply to the answer of this task's request."""
    add = current.get() if reply.cache or reply.version else None
    if add is not None:
        add(headers_of(reply))


def find_header(headers: Iterable[tuple[bytes, bytes]], name: str) -> str:
    """Return the first of the `headers` of a request with a name in lower case; "" for none."""
    raw_name = name.encode()
    return next((value.decode("latin-1") for key, value in headers if key == raw_name), "")
