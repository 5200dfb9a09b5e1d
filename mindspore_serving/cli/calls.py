"""HTTP requests of the commands that manage a running server."""

import json
from http.client import HTTPException
from typing import Any

from mindspore_serving.cli.endpoint import no_answer, to_endpoint
from mindspore_serving.cli.openai import refusal
from mindspore_serving.cli.settings import Access

TIMEOUT = 10.0  # seconds, for a request that is answered at once


def call(access: Access, url: str, path: str, body: Any = None, timeout: float = TIMEOUT) -> Any:
    """Send a POST with `body`, or a GET if that is None, and return the JSON of the answer.

    Returns None if the answer is not JSON. Raises ServingError.
    """
    endpoint = to_endpoint(url, access)
    connection = endpoint.connect(timeout)
    try:
        headers = {**endpoint.headers, "content-type": "application/json"}
        sent = None if body is None else json.dumps(body)
        verb = "GET" if body is None else "POST"
        connection.request(verb, endpoint.base + path, sent, headers)
        answer = connection.getresponse()
        data = answer.read()
        is_json = answer.headers.get_content_type() == "application/json"
        reply = json.loads(data) if data and is_json else None
    except (OSError, HTTPException, ValueError) as error:
        raise no_answer(endpoint, error) from None
    finally:
        connection.close()
    if answer.status != 200:
        raise refusal(endpoint, path, answer.status, data)
    return reply
