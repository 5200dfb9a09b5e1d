"""The body of a request: read within a limit, and decoded.  Knows no protocol's errors."""

import asyncio
from typing import TypeVar

import msgspec
from starlette.requests import Request

from mindspore_serving.aio import on_thread
from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.errors import InvalidField, TooLarge
from mindspore_serving.wire.json_shape import SMALL, Shape, check_shape

T = TypeVar("T")
_PIECE = 1 << 20  # bytes


async def read_body(request: Request, most: int) -> bytes | bytearray:
    """All of the body; a large one may come in one piece, which is copied bit by bit while others
    have their turn.  Raises TooLarge before more than `most` bytes are held, and Starlette's
    ClientDisconnect if the client leaves.
    """
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > most:
        raise too_large(most)
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > most:
            raise too_large(most)
        for start in range(0, len(chunk), _PIECE):
            if start:
                await asyncio.sleep(0)
            body += chunk[start : start + _PIECE]
    return bytes(body) if len(body) <= _PIECE else body


async def read_json(request: Request, most: int, limits: LanguageLimits) -> bytes:
    """All of the body of a request to a language model, which can be decoded on the event loop: in
    some 10 ms at most.  Raises what `read_body` raises, and InvalidField for too many values.
    """
    body = bytes(await read_body(request, min(most, limits.max_body)))
    await check_values(body, limits)
    return body


async def check_values(body: bytes, limits: LanguageLimits) -> None:
    """Raises InvalidField for too many values in JSON that is to be decoded."""
    if len(body) > SMALL:
        allowed = Shape(limits.max_values, limits.max_objects)
        await on_thread("bodies", check_shape, body, allowed)


def too_large(most: int) -> TooLarge:
    return TooLarge(f"the body is bigger than {most} bytes")


class InvalidBody(InvalidField):
    """A body that is not what a route expects.

    `field` is the path of the wrong value, like "messages[0].role", or of the object that has a
    wrong key if `is_key`.  `is_json` is False if the body is no JSON at all.
    """

    def __init__(
        self, field: str, problem: str, *, is_json: bool = True, is_key: bool = False
    ) -> None:
        super().__init__(field, text=problem)
        self.is_json = is_json
        self.is_key = is_key


def decode(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """Raises InvalidBody."""
    try:
        if not body.isascii():
            str(body, "utf-8")  # the decoder does not look at what it skips, or keeps as it is
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        # msgspec has the place in the text alone: "... - at `$.a[0]`", "... - at `key` in `$.a`".
        problem, _, place = str(error).partition(" - at ")
        is_key = place.startswith("`key` in ")
        field = place.removeprefix("`key` in ").strip("`").removeprefix("$").removeprefix(".")
        raise InvalidBody(field, problem, is_key=is_key) from None
    except RecursionError:
        problem = "it has too many arrays or objects in one another"
        raise InvalidBody("", problem, is_json=False) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidBody("", str(error), is_json=False) from None
