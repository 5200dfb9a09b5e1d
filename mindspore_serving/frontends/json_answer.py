"""Answers that are JSON.  Knows no protocol's form of them."""

from collections.abc import Mapping

import msgspec
from starlette.responses import Response


def to_answer(found: object) -> Response:
    """A response as it is, an empty one of None, other objects as JSON."""
    if isinstance(found, Response):
        return found
    return Response() if found is None else to_json(found)


def to_json(
    found: object,
    status: int = 200,
    retry_after: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """`found` as JSON; of an error, in how many seconds the request may be sent again."""
    again = {"retry-after": retry_after} if retry_after else {}
    return Response(
        msgspec.json.encode(found), status, {**again, **(headers or {})}, "application/json"
    )
