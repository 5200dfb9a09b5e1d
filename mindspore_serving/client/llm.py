"""Client of llm-serving's HTTP protocol, with the standard library alone."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from mindspore_serving.client.check import check_str, check_timeout
from mindspore_serving.client.llm_answers import (
    Response,
    StreamResponse,
    Token,
    to_response,
    to_responses,
)
from mindspore_serving.errors import (
    InvalidInputs,
    NotFound,
    Overloaded,
    ServingError,
    TooLarge,
    Unauthorized,
)
from mindspore_serving.tracing import user_spans

__all__ = ["MindsporeInferenceClient", "Response", "StreamResponse", "Token"]

_BY_STATUS: dict[int, type[ServingError]] = {
    401: Unauthorized,
    404: NotFound,
    413: TooLarge,
    422: InvalidInputs,
    429: Overloaded,
}


class MindsporeInferenceClient:
    """Client of one language model.

        client = MindsporeInferenceClient("llama2", "http://127.0.0.1:9800")
        print(client.generate("What is monetary policy?").generated_text)

    Args:
        model_type: the model's name, or "llama2" for the only model.
        server_url: http://HOST:PORT or https://HOST:PORT.
        token: API key of the server; None if it has none.
        timeout: max seconds without a new chunk of the answer.

    Raises InvalidInputs for a wrong argument.
    """

    def __init__(
        self, model_type: str, server_url: str, token: str | None = None, timeout: float = 30000
    ) -> None:
        check_str("model_type", model_type)
        check_str("server_url", server_url)
        check_timeout(timeout)
        url = urlsplit(server_url)
        self._is_secure = url.scheme == "https"
        self._address = _address(url, server_url)
        self._path = f"{url.path.rstrip('/')}/models/{quote(model_type, safe='')}"
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._timeout = timeout

    def generate(  # noqa: PLR0917  (the order is the original's)
        self,
        prompt: str,
        do_sample: bool = False,
        repetition_penalty: float = 1.0,
        temperature: float = 1.0,
        top_k: int = 1,
        top_p: float = 1,
        max_new_tokens: int = 300,
        **parameters: Any,
    ) -> Response:
        """Return the answer to `prompt`; `parameters` are more of the protocol, such as `seed`.

        Raises ServingError: Overloaded, NotFound, Unauthorized, InvalidInputs for a prompt that is
        empty or too long, or a plain ServingError with the server's text.
        """
        fields = {
            "do_sample": do_sample,
            "repetition_penalty": repetition_penalty,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "max_new_tokens": max_new_tokens,
            **parameters,
        }
        with self._post(prompt, fields, is_stream=False) as reply:
            return to_response(reply.read())

    def generate_stream(  # noqa: PLR0917
        self,
        prompt: str,
        do_sample: bool = True,
        repetition_penalty: float = 1.0,
        temperature: float = 1.0,
        top_k: int = 1,
        top_p: float = 1,
        max_new_tokens: int = 300,
        return_full_text: bool = True,
        **parameters: Any,
    ) -> Iterator[StreamResponse]:
        """Iterate over the answer as it is generated; leaving the loop early cancels it.

        Raises the errors of `generate`.
        """
        fields = {
            "do_sample": do_sample,
            "repetition_penalty": repetition_penalty,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "max_new_tokens": max_new_tokens,
            "return_full_text": return_full_text,
            **parameters,
        }
        with self._post(prompt, fields, is_stream=True) as reply:
            # `read1`, as iteration over lines ends without an error if the connection breaks.
            yield from to_responses(reply.read1, has_last=return_full_text)

    @contextmanager
    def _post(
        self, prompt: str, parameters: dict[str, Any], *, is_stream: bool
    ) -> Iterator[http.client.HTTPResponse]:
        body = {"inputs": prompt, "parameters": parameters, "stream": is_stream}
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        connection = kind(*self._address, timeout=self._timeout)
        headers = {**self._headers, **user_spans.headers()}
        try:
            connection.request("POST", self._path, json.dumps(body), headers)
            reply = connection.getresponse()
            if reply.status != 200:
                raise _to_error(reply.status, reply.read())
            yield reply
        except (OSError, http.client.HTTPException) as error:
            host, port = self._address
            raise ServingError(f"calling {host}:{port} failed: {error!r}") from error
        finally:
            connection.close()


def _address(url: SplitResult, text: str) -> tuple[str, int | None]:
    """Return host and port.  Raises InvalidInputs for another URL."""
    try:
        port = url.port
    except ValueError:
        port = -1
    if url.scheme not in ("http", "https") or not url.hostname or port == -1:
        raise InvalidInputs(f"server_url is {text!r}, expected http://HOST:PORT")
    return url.hostname, port


def _to_error(status: int, body: bytes) -> ServingError:
    text = body.decode("utf-8", "replace")
    try:
        detail = json.loads(text)["detail"]
        if not isinstance(detail, str):
            detail = "; ".join(
                f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in detail
            )
        text = detail
    except (ValueError, KeyError, TypeError):
        pass  # the text of another server is kept
    return _BY_STATUS.get(status, ServingError)(f"{text} (HTTP {status})")
