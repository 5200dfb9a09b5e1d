"""Which request is served now."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Its id, which stands in each line."""


@contextmanager
def of_request(name: str) -> Iterator[None]:
    """What is logged inside is of the request `name`; "" is of the one before."""
    token = request_id.set(name or request_id.get())
    try:
        yield
    finally:
        request_id.reset(token)
