"""Bodies of HTTP requests: reading within a limit, and decoding.

Knows no protocol's errors.
"""

import asyncio
import re
from typing import TypeVar

import msgspec
from starlette.requests import Request

from mindspore_serving.aio import on_thread
from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.errors import InvalidField, TooLarge
from mindspore_serving.wire.json_shape import SMALL, Shape, check_shape

# msgspec gives the expected type only in the text of its error.
_TYPE = re.compile(r"^Expected `([^`]+)`(.*?)(?:, got `([^`]+)`)?$")
_NAMES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
T = TypeVar("T")
_PIECE = 1 << 20  # bytes
# Options that limit bodies: those of all requests, and those to language models.
OF_MESSAGES, OF_LANGUAGE = "--max-msg-mb", "--limit max_body=BYTES"


async def read_body(request: Request, limit: int, option: str = OF_MESSAGES) -> bytes | bytearray:
    """Read the body.  A large piece is copied in parts, between which the event loop runs.

    Raises TooLarge before more than `limit` bytes are held, and Starlette's ClientDisconnect if the
    client disconnects.
    """
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise too_large(limit, option)
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > limit:
            raise too_large(limit, option)
        for start in range(0, len(chunk), _PIECE):
            if start:
                await asyncio.sleep(0)
            body += chunk[start : start + _PIECE]
    return bytes(body) if len(body) <= _PIECE else body


async def read_json(request: Request, limit: int, limits: LanguageLimits) -> bytes:
    """Read the JSON body of a request to a language model, within `limit` bytes and `limits`.

    Decoding it on the event loop takes some 10 ms at most.
    Raises InvalidField for too many values, and the errors of `read_body`.
    """
    option = OF_LANGUAGE if limits.max_body < limit else OF_MESSAGES
    body = bytes(await read_body(request, min(limit, limits.max_body), option))
    await check_values(body, limits)
    return body


async def check_values(body: bytes, limits: LanguageLimits) -> None:
    """Raise InvalidField if JSON has too many values to be decoded."""
    if len(body) > SMALL:
        allowed = Shape(limits.max_values, limits.max_objects)
        await on_thread("bodies", check_shape, body, allowed)


def too_large(limit: int, option: str = OF_MESSAGES) -> TooLarge:
    """Return the error for a body over `limit`, which the server's `option` sets."""
    return TooLarge(
        f"the body is bigger than {limit} bytes; {option} of the server sets this limit"
    )


class InvalidBody(InvalidField):
    """A body that does not have the type that a route expects.

    `field` is the path of the wrong value, such as "messages[0].role"; with `is_key`, that of the
    object with a wrong key.  `is_json` is False if the body is not JSON.
    """

    def __init__(
        self, field: str, problem: str, *, is_json: bool = True, is_key: bool = False
    ) -> None:
        super().__init__(field, text=problem)
        self.is_json = is_json
        self.is_key = is_key


def in_words(problem: str) -> str:
    """Return msgspec's text in words: "expected a number, got a string", "missing field `a`"."""
    mismatch = _TYPE.match(problem)
    if mismatch is None:
        return problem.replace("Object missing required field", "missing field", 1)
    got = f", got {_NAMES.get(mismatch[3], mismatch[3])}" if mismatch[3] else ""
    return f"{expected_of(mismatch)}{got}"


def expected_of(mismatch: "re.Match[str]") -> str:
    """Return the accepted types and values of a match of msgspec's text."""
    names = [_NAMES.get(name, name) for name in mismatch[1].split(" | ")]
    return f"expected {' or '.join(names)}{mismatch[2]}"


def mismatch_of(problem: str) -> "re.Match[str] | None":
    """Return the match of msgspec's text if it is about a wrong type or value."""
    return _TYPE.match(problem)


def decode(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """Decode a body of JSON.  Raises InvalidBody."""
    if not body:
        raise InvalidBody("", "it is empty", is_json=False)
    try:
        if not body.isascii():
            str(body, "utf-8")  # the decoder does not check values that it skips, or keeps raw
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        # msgspec gives the path only in its text: "... - at `$.a[0]`", "... - at `key` in `$.a`".
        problem, _, path = str(error).partition(" - at ")
        is_key = path.startswith("`key` in ")
        field = path.removeprefix("`key` in ").strip("`").removeprefix("$").removeprefix(".")
        raise InvalidBody(field, problem, is_key=is_key) from None
    except RecursionError:
        problem = "its arrays or objects are nested too deeply"
        raise InvalidBody("", problem, is_json=False) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidBody("", str(error), is_json=False) from None
