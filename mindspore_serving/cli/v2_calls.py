"""A call of protocol v2's HTTP routes, for the commands that look after a running server."""

import json
from http.client import HTTPException
from typing import Any

from mindspore_serving.cli.endpoint import to_endpoint
from mindspore_serving.cli.settings import Access
from mindspore_serving.errors import ServableUnavailable, ServingError

TIMEOUT = 10.0  # seconds of a call that is answered at once


def call(access: Access, http: str, path: str, body: Any, timeout: float = TIMEOUT) -> Any:
    """The answer to a POST of `body` below /v2, or to a GET if that is None.  Raises
    ServingError."""
    endpoint = to_endpoint(http, access)
    connection = endpoint.connect(timeout)
    try:
        headers = {**endpoint.headers, "content-type": "application/json"}
        sent = None if body is None else json.dumps(body)
        verb = "GET" if body is None else "POST"
        connection.request(verb, f"{endpoint.base}/v2{path}", sent, headers)
        answer = connection.getresponse()
        data = answer.read()
        found = json.loads(data) if data else None
    except (OSError, HTTPException, ValueError) as error:
        raise ServableUnavailable(f"{endpoint.url} does not answer: {error}") from None
    finally:
        connection.close()
    if answer.status != 200:
        text = found.get("error") if isinstance(found, dict) else None
        raise ServingError(text or f"{endpoint.url} answers {answer.status}: {data[:200]!r}")
    return found
