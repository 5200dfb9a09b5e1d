"""Reading a request's body within a limit.  Knows no JSON and no protocol's errors."""

from starlette.requests import Request

from mindspore_serving.errors import TooLarge


async def read_body(request: Request, most: int) -> bytes:
    """All of the body.  Raises TooLarge before more than `most` bytes are held, and Starlette's
    ClientDisconnect if the client leaves."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > most:
        raise too_large(most)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise too_large(most)
    return bytes(body)


def too_large(most: int) -> TooLarge:
    return TooLarge(f"the body is bigger than {most} bytes")
