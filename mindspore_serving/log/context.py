"""Id of the request that is being served."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the request, which is in each line."""


@contextmanager
def of_request(name: str) -> Iterator[None]:
    """Log the block's lines with the request id `name`; "" keeps the current id."""
    token = request_id.set(name or request_id.get())
    try:
        yield
    finally:
        request_id.reset(token)
