"""Responses with a JSON body.  Knows no protocol's fields."""

from collections.abc import Mapping

import msgspec
from starlette.responses import Response


def to_answer(result: object) -> Response:
    """Make a response of a handler's result: a response, None (no body) or an object (JSON)."""
    if isinstance(result, Response):
        return result
    return Response() if result is None else to_json(result)


def to_json(
    body: object,
    status: int = 200,
    retry_after: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Encode `body` as JSON; `retry_after` is in seconds, for the header of that name."""
    retry = {"retry-after": retry_after} if retry_after else {}
    return Response(
        msgspec.json.encode(body), status, {**retry, **(headers or {})}, "application/json"
    )
