"""The body that clients send.  Numbers and booleans may be text, as "False" and "55" are in the
examples that people copied; unknown fields are ignored.
"""

from typing import Any

import msgspec
from starlette.responses import Response

from mindspore_serving.errors import InvalidInputs

Detail = dict[str, Any]


class Parameters(msgspec.Struct, kw_only=True):
    """None where it makes a difference that nothing was said."""

    do_sample: bool | None = True
    top_k: int | None = None
    top_p: float | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None
    return_full_text: bool | None = True
    return_protocol: str | None = "sse"
    decoder_input_details: bool | None = False
    details: bool | None = False
    seed: int | None = 0
    stop: list[str] | None = None
    top_n_tokens: int | None = 0
    truncate: bool | int | None = False
    typical_p: float | None = 0
    watermark: bool | None = False


class ClientRequest(msgspec.Struct, kw_only=True):
    inputs: str
    parameters: Parameters | None = None
    stream: bool = False


class WrongRequest(InvalidInputs):
    """A body that is no request; `where` is the path to what is wrong."""

    def __init__(self, text: str, where: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.where = where

    def to_response(self) -> Response:
        detail = [{"loc": ["body", *self.where], "msg": str(self), "type": "value_error"}]
        return to_detail(422, detail)


def to_detail(status: int, detail: str | list[Detail]) -> Response:
    """An error with a status of HTTP's own."""
    body = msgspec.json.encode({"detail": detail})
    return Response(body, status, media_type="application/json")


_decode = msgspec.json.Decoder(ClientRequest, strict=False).decode


def decode(body: bytes) -> ClientRequest:
    """Raises WrongRequest."""
    try:
        return _decode(body)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        path = where.strip("`").removeprefix("$").removeprefix(".")
        raise WrongRequest(what, tuple(path.split(".")) if path else ()) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WrongRequest(f"the body is not JSON: {error}") from None
