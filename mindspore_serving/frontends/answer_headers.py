"""Headers of answers that are those of no protocol: of HTTP, or trailing metadata of gRPC."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar

from mindspore_serving.core.service import Reply

CACHE = "x-cache"

current: ContextVar[Callable[[Mapping[str, str]], object] | None] = ContextVar(
    "answer_headers", default=None
)
"""Function that adds headers to the answer of this task's request."""


def note_cache(reply: Reply) -> None:
    """Add the header of a reply to a method that has a cache of answers."""
    add = current.get() if reply.cache else None
    if add is not None:
        add({CACHE: reply.cache})
