"""Client of two OpenAI routes for the terminal: the list of models, and a streamed chat.

It uses the standard library's HTTP client, with one connection per request.
"""

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any

from mindspore_serving.cli.endpoint import API_KEY, Endpoint, no_answer
from mindspore_serving.errors import NotFound, ServingError

_MAX_TOKENS = 2048  # of an answer, if the server suggests no number


@dataclass(frozen=True, slots=True)
class Delta:
    """Chunk of an answer: `text`, or the `thought` before it; at the end, token counts."""

    text: str = ""
    thought: str = ""
    finish_reason: str = ""
    usage: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """Model that a server lists; `max_tokens` is the limit of an answer unless the user says it.

    `context` is the length of its context in tokens, 0 if the server does not say it.
    """

    name: str
    max_tokens: int
    context: int = 0


def models(endpoint: Endpoint, timeout: float) -> list[ModelEntry]:
    """Return the models of a server.  Raises ServingError if this is not an OpenAI server."""
    connection = endpoint.connect(timeout)
    try:
        reply = json.loads(_send(connection, endpoint, "/v1/models", None).read())
        return [
            ModelEntry(str(each["id"]), _max_tokens(each), int(each.get("max_model_len") or 0))
            for each in reply["data"]
        ]
    except (OSError, HTTPException) as error:  # before ValueError, as some errors of TLS are both
        raise no_answer(endpoint, error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ServingError(f"{endpoint.url} has no OpenAI interface: {error}") from error
    finally:
        connection.close()


def choose(endpoint: Endpoint, name: str, timeout: float) -> ModelEntry:
    """Return the model `name`, the first if that is "".  Raises NotFound."""
    listed = {model.name: model for model in models(endpoint, timeout)}
    if not listed:
        raise NotFound(f"{endpoint.url} serves no language model")
    if name and name not in listed:
        raise NotFound(f"no model {name!r} at {endpoint.url}; there is: {', '.join(listed)}")
    return listed[name or next(iter(listed))]


def _max_tokens(model: dict[str, Any]) -> int:
    """Return the number that the server suggests, else one that leaves room for the prompt.

    Some servers refuse a request whose prompt and `max_tokens` are over the context.
    """
    context = model.get("max_model_len")
    limit = min(_MAX_TOKENS, context // 2) if isinstance(context, int) else _MAX_TOKENS
    return int(model.get("suggested_max_tokens") or limit)


def stream_chat(
    endpoint: Endpoint, body: dict[str, Any], timeout: float
) -> Generator[Delta, None, None]:
    """Iterate over the answer to `body` as it arrives.

    Closing the generator closes the connection, which stops the model. `timeout` is the time in
    seconds between two chunks. Raises ServingError.
    """
    connection = endpoint.connect(timeout)
    try:
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        response = _send(connection, endpoint, "/v1/chat/completions", body)
        is_finished = False
        for delta in _deltas(response):
            is_finished = is_finished or bool(delta.finish_reason)
            yield delta
        if not is_finished:
            raise ServingError("the connection was lost before the end of the answer")
    except (OSError, HTTPException, ValueError) as error:
        raise no_answer(endpoint, error) from error
    finally:
        connection.close()


def refusal(endpoint: Endpoint, path: str, status: int, body: bytes) -> ServingError:
    """Return the error of an answer whose status is not 200."""
    text = error_text(body)
    if status == HTTPStatus.UNAUTHORIZED:
        text += f" (set --api-key or {API_KEY})"
    return ServingError(f"{endpoint.url}{path}: {text} (status {status})")


def error_text(body: bytes) -> str:
    """Return the error message of an answer, in any of the server's protocols."""
    try:
        reply = json.loads(body)
    except ValueError:
        return body.decode(errors="replace").strip()[:200]
    if isinstance(reply, list) and reply:
        reply = reply[0]
    if not isinstance(reply, dict):
        return str(reply)[:200]
    names = ("error", "error_msg", "message", "detail")
    error = next((reply[name] for name in names if reply.get(name)), reply)
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _deltas(response: HTTPResponse) -> Iterator[Delta]:
    for line in response:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise ServingError(error_text(data))
        yield _to_delta(event)


def _to_delta(event: dict[str, Any]) -> Delta:
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return Delta(
        delta.get("content") or "",
        delta.get("reasoning_content") or delta.get("reasoning") or "",
        choices[0].get("finish_reason") or "",
        event.get("usage"),
    )


def _send(
    connection: HTTPConnection, endpoint: Endpoint, path: str, body: dict[str, Any] | None
) -> HTTPResponse:
    """Return the response if its status is 200.  Raises ServingError for others."""
    encoded = None if body is None else json.dumps(body).encode()
    headers = {**endpoint.headers, "content-type": "application/json"}
    verb = "GET" if body is None else "POST"
    connection.request(verb, endpoint.base + path, encoded, headers)
    response = connection.getresponse()
    if response.status == 200:
        return response
    raise refusal(endpoint, path, response.status, response.read())
