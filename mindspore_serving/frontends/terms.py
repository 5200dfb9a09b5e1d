"""On what terms one request is served: how long it may take, and how it is placed among others."""

from dataclasses import dataclass

from starlette.requests import Request

from mindspore_serving.frontends.keys import HOLDER, KeyHolder
from mindspore_serving.frontends.mindspore.rest import to_timeout


@dataclass(frozen=True, slots=True)
class Terms:
    """`timeout` is in seconds, None for no limit but the server's.  `priority` is added to that of
    a request to a language model: lower runs first.
    """

    timeout: float | None = None
    priority: int = 0


def terms_of(http: Request) -> Terms:
    """What the header X-Request-Timeout and the API key say.  Raises InvalidInputs."""
    header = http.headers.get("x-request-timeout")
    holder: KeyHolder | None = http.scope.get(HOLDER)
    return Terms(
        timeout=to_timeout(header.encode("latin-1")) if header else None,
        priority=holder.key.priority if holder is not None else 0,
    )
