"""POST .../infer: the body with its header, compressed or not, and the answer in the form that the
client asked for.
"""

import zlib
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.aio import on_thread
from mindspore_serving.core.buffers import Buffer, BufferList, contiguous, join
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.frontends.disconnect import while_there
from mindspore_serving.frontends.terms import terms_of
from mindspore_serving.frontends.v2.answering import model_of
from mindspore_serving.frontends.v2.inference import V2, Selected
from mindspore_serving.frontends.v2.inflating import FORMATS
from mindspore_serving.frontends.v2.models import V2Model
from mindspore_serving.wire.json_shape import SMALL
from mindspore_serving.wire.v2 import json_body
from mindspore_serving.wire.v2.request import InferRequest, ReadRegion

MUCH = 1 << 20  # bytes of JSON, which are read on a thread
HEADER_LENGTH = "inference-header-content-length"


async def infer(v2: V2, http: Request) -> Response:
    """Raises ServingError, and ClientDisconnect if the client leaves."""
    headers: dict[str, str] = {}
    name = model_of(http)
    async with v2.inflating.body(http, v2.state.max_body) as body:
        model = v2.models.find(*name)
        how = model, body, http.headers.get(HEADER_LENGTH), v2.memory.read
        is_much = how[2] is None and len(body) > MUCH
        request = await on_thread("bodies", parse, *how) if is_much else parse(*how)
        found = await while_there(http, v2.infer(model, request, terms_of(http), headers.update))
        response = await _respond(http, model, request, found)
    response.headers.update(headers)
    return response


def parse(
    model: V2Model, body: Buffer, length: str | None, read_region: ReadRegion
) -> InferRequest:
    """`length` is the header that says how much of the body is JSON.  Raises InvalidInputs."""
    if length is None:
        return json_body.parse(body, None, read_region)
    if not (length.isascii() and length.isdigit() and len(length) <= 18):
        raise InvalidInputs(f"{HEADER_LENGTH} is {length[:32]!r}, expected a number of bytes")
    if int(length) == 0:
        return json_body.parse_raw(body, model.signature.inputs)
    return json_body.parse(body, int(length), read_region)


def to_answer(
    model: V2Model, request: InferRequest, found: Selected
) -> tuple[int | None, bytes | BufferList]:
    """The body of an answer, and how many bytes of it are JSON: None for all of them."""
    json, tail = json_body.answer(model.name, model.version, request.id, found)
    is_binary = any(wanted.is_binary and wanted.region is None for _, wanted in found)
    return (len(json), join((json, *tail))) if is_binary else (None, json)


async def _respond(
    http: Request, model: V2Model, request: InferRequest, found: Selected
) -> Response:
    length, answer = to_answer(model, request, found)
    body: Any = contiguous(answer)
    headers = {} if length is None else {HEADER_LENGTH: str(length)}
    encoding = _accepted(http.headers.get("accept-encoding", ""))
    if encoding:
        headers["content-encoding"] = encoding
        if len(body) <= SMALL:
            body = _compress(body, encoding)
        else:
            body = await on_thread("compression", _compress, body, encoding)
    media_type = "application/json" if length is None else "application/octet-stream"
    return Response(body, 200, headers, media_type)


def _accepted(header: str) -> str:
    """Compression is used only where it is asked for alone, as clients of the protocol do: browsers
    and libraries name it in every request.
    """
    name = header.strip().lower()
    return name if name in FORMATS else ""


def _compress(body: bytes, encoding: str) -> bytes:
    encoder = zlib.compressobj(wbits=FORMATS[encoding])
    return encoder.compress(body) + encoder.flush()
