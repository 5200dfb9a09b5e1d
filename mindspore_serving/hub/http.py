"""HTTP of sources: JSON and files, ranges, redirects, and errors as one sentence.

Credentials go to the host that the source names: a redirect to another host is followed without.
"""

import json
import re
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import requests

from mindspore_serving import __version__
from mindspore_serving.errors import NotFound, ServingError, StartError, did_you_mean
from mindspore_serving.hub.download import Interrupted, OpenAt, RemoteContent
from mindspore_serving.hub.source import Unreachable

TIMEOUTS = (5.0, 30.0)  # seconds to connect, and between two pieces of an answer
MAX_WAIT = 60.0  # seconds of Retry-After that a download waits
MAX_SECONDS = 60.0  # of a small answer as a whole
MAX_JSON = 32 << 20  # bytes of a list of files or a manifest
_MAX_REDIRECTS = 8
_CHUNK = 1 << 20
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class HttpClient:
    """Requests to one source: its `Authorization` header, and what to do if it refuses."""

    def __init__(self, authorization: str = "", *, cookie: str = "", advice: str = "") -> None:
        self.authorization = authorization
        self._cookie = cookie
        self._advice = advice

    def get_json(self, url: str, what: str, *, accept: str = "") -> Any:
        """Return the JSON that `url` answers; `what` is its subject in errors."""
        return parse_json(self.get(url, what, accept=accept)[0], url)

    def get(
        self, url: str, what: str, *, accept: str = "", limit: int = MAX_JSON
    ) -> tuple[bytes, Mapping[str, str]]:
        """Return a small body and its headers."""
        with self._answer("GET", url, what, {"Accept": accept or "*/*"}) as response:
            body, deadline = bytearray(), time.monotonic() + MAX_SECONDS
            for chunk in _chunks(response, what):
                body += chunk
                if time.monotonic() > deadline:
                    raise Interrupted(f"{_host(response.url)} sends {what} too slowly")
                if len(body) > limit:
                    raise StartError(f"{_host(response.url)} sends over {limit} bytes for {what}")
            return bytes(body), response.headers

    def head(self, url: str, what: str) -> requests.Response:
        """Return status and headers of a file, behind its redirects."""
        try:
            with self._answer("HEAD", url, what, {"Accept-Encoding": "identity"}) as response:
                return response
        except ServingError as error:
            if isinstance(error, Unreachable):
                raise
        # Addresses that are signed for GET refuse HEAD.
        headers = {"Accept-Encoding": "identity", "Range": "bytes=0-0"}
        with self._answer("GET", url, what, headers) as response:
            return response

    def open_at(self, url: str, what: str) -> OpenAt:
        """Return the function that downloads `url` from an offset on."""

        def open_at(offset: int, validator: str) -> RemoteContent:
            headers = {"Accept-Encoding": "identity"}
            if offset:
                headers["Range"] = f"bytes={offset}-"
                if validator:
                    headers["If-Range"] = validator
            response = self._answer("GET", url, what, headers, allowed=(416,))
            if response.status_code == 416:  # the file is shorter than what is here
                response.close()
                return open_at(0, "")
            match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
            length = response.headers.get("Content-Length", "")
            # ModelScope answers with a part by 200, so its length decides.
            is_part = match is not None and (
                response.status_code == 206 or length == _length_of_rest(match)
            )
            total = match[2] if is_part and match else length
            start = int(match[1]) if is_part and match else 0
            if start not in (0, offset):
                response.close()
                raise StartError(f"{_host(url)} sends another range of {what} than requested")
            return RemoteContent(
                _closing(response, what),
                start,
                int(total) if total.isdecimal() else -1,
                validator_of(response.headers),
            )

        return open_at

    def _answer(
        self,
        verb: str,
        url: str,
        what: str,
        headers: Mapping[str, str],
        *,
        allowed: tuple[int, ...] = (),
    ) -> requests.Response:
        """Return an answer with an unread body; raises one sentence for a status of errors."""
        try:
            with requests.Session() as session:  # its connection lives as long as the answer
                session.max_redirects = _MAX_REDIRECTS
                response = session.request(
                    verb,
                    url,
                    headers={"User-Agent": f"mindspore-serving/{__version__}", **headers},
                    auth=self._authorize if self.authorization or self._cookie else None,
                    timeout=TIMEOUTS,
                    stream=True,
                    allow_redirects=True,
                )
        except requests.TooManyRedirects as error:
            raise StartError(
                f"{_host(url)} redirects {what} over {_MAX_REDIRECTS} times"
            ) from error
        except (requests.RequestException, OSError) as error:
            raise Interrupted(f"{_host(url)} cannot be reached: {_cause(error)}") from error
        if response.status_code >= 400 and response.status_code not in allowed:
            response.close()
            raise self._refused(response, what)
        return response

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Set the headers; a function, as ~/.netrc, read if there are none, would replace them."""
        if self.authorization:
            request.headers["Authorization"] = self.authorization
        if self._cookie:
            request.headers["Cookie"] = self._cookie
        return request

    def _refused(self, response: requests.Response, what: str) -> ServingError:
        status, host = response.status_code, _host(response.url)
        advice = f"; {self._advice}" if self._advice else ""
        if status == 401:
            return CredentialsRefused(
                f"{host} answers 401 (no or wrong credentials) to {what}{advice}", response
            )
        if status == 403:
            return StartError(f"{host} answers 403 (not allowed) to {what}{advice}")
        if status in (404, 410):
            return NotFound(f"{host} has no {what}")
        if status in _TEMPORARY:
            wait = retry_after(response.headers.get("Retry-After", ""))
            text = f"{host} answers {status} to {what}"
            if status == 429:
                text = f"{host} answers 429 (too many requests) to {what}"
            if wait > MAX_WAIT:
                return Unreachable(f"{text}, and to try again in {wait:.0f} seconds")
            return Interrupted(f"{text}; try again later", wait)
        return StartError(f"{host} answers {status} to {what}")


class CredentialsRefused(StartError):
    """Answer 401, with its `WWW-Authenticate`."""

    def __init__(self, text: str, response: requests.Response) -> None:
        super().__init__(text)
        self.challenge = response.headers.get("WWW-Authenticate", "")


def parse_json(body: bytes, url: str) -> Any:
    """Return JSON that a source sent."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Unreachable(f"{_host(url)} answers with what is no JSON: {error}") from error


def _length_of_rest(match: re.Match[str]) -> str:
    """Return the Content-Length of a part that reaches to the end of the file."""
    return str(int(match[2]) - int(match[1])) if match[2].isdecimal() else "unknown"


def near_names(name: str, search: Callable[[], Iterable[str]]) -> str:
    """Return "; did you mean '...'?" for a misspelt name, if the search of its source answers."""
    try:
        return did_you_mean(name, search())
    except (ServingError, AttributeError, TypeError, KeyError):  # no search, or of another form
        return ""


def validator_of(headers: Mapping[str, str]) -> str:
    """Return what If-Range accepts: a strong ETag or, without, the date of the last change."""
    etag = headers.get("ETag", "")
    if etag and not etag.startswith("W/"):
        return etag
    return headers.get("Last-Modified", "")


def retry_after(text: str) -> float:
    """Return the seconds of a Retry-After header: a number or a date; 0 without."""
    if text.strip().isdecimal():
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    return max(0.0, (date - datetime.now(timezone.utc)).total_seconds())


def _closing(response: requests.Response, what: str) -> Generator[bytes, None, None]:
    """Return the body; its end and its `close` close the response, also if nothing was read."""

    def read() -> Generator[bytes, None, None]:
        with response:
            yield b""
            yield from _chunks(response, what)

    body = read()
    next(body)  # a generator that has not begun would not close the response
    return body


def _chunks(response: requests.Response, what: str) -> Generator[bytes, None, None]:
    """Iterate over the body as it comes, undecoded: a slow server fails by the time of one read."""
    read: Callable[[int], bytes] = response.raw.read1
    try:
        while chunk := read(_CHUNK):
            yield chunk
    except Exception as error:
        import urllib3

        if not isinstance(error, (urllib3.exceptions.HTTPError, OSError)):
            raise
        if isinstance(_innermost(error), urllib3.exceptions.IncompleteRead):
            stopped = f"{_host(response.url)} ended the connection before all of {what} came"
        else:
            stopped = f"{_host(response.url)} stopped sending {what}: {_cause(error)}"
        raise Interrupted(f"{stopped}; start again, and the rest is downloaded") from error


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def _cause(error: BaseException) -> str:
    """Return the innermost cause of an error of the library, without its objects' addresses."""
    if isinstance(error, requests.ConnectTimeout):
        return f"no answer in {TIMEOUTS[0]:g} seconds"
    error = _innermost(error)
    if isinstance(error, TimeoutError):
        return f"nothing came for {TIMEOUTS[1]:g} seconds"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return re.sub(r"<[^>]* at 0x[0-9a-f]+>:? ?", "", text)


def _innermost(error: BaseException) -> BaseException:
    while True:
        inner = getattr(error, "reason", None) or error.__cause__ or error.__context__
        if not isinstance(inner, BaseException):
            inner = next((arg for arg in error.args if isinstance(arg, BaseException)), None)
        if inner is None:
            return error
        error = inner
