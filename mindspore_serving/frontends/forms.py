"""Forms in bodies of requests: multipart/form-data with a file.  Knows no field."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from mindspore_serving.errors import InvalidField

FORM = "multipart/form-data"
FORM_OVERHEAD = 64 << 10  # bytes of a form besides the file
_PARSED_BYTES = 1 << 20  # between two turns of other requests


async def parse_form(http: Request, body: bytes | bytearray, max_fields: int = 8) -> Any:
    """Return the form in a body, to be closed; it has one file at most.  Raises InvalidField."""
    if not http.headers.get("content-type", "").startswith(FORM):
        raise InvalidField("", text=f"the body is no form: send it as {FORM}")

    async def pieces() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(body), _PARSED_BYTES):
            yield bytes(body[start : start + _PARSED_BYTES])
            await asyncio.sleep(0)  # other requests get a turn: a whole file takes 0.1 s

    parser = MultiPartParser(http.headers, pieces(), max_files=1, max_fields=max_fields)
    try:
        return _Closing(await parser.parse())
    except (MultiPartException, KeyError, UnicodeDecodeError) as error:
        text = getattr(error, "message", f"it is not {FORM}")
        raise InvalidField("", text=f"the form is wrong: {text}") from None


class _Closing:
    """A form that is closed at the end of a block."""

    def __init__(self, form: FormData) -> None:
        self._form = form

    async def __aenter__(self) -> FormData:
        return self._form

    async def __aexit__(self, *error: object) -> None:
        await self._form.close()
