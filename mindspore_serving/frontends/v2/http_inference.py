"""POST .../infer: bodies of JSON and binary data, and answers in the requested form."""

import zlib
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.aio import on_thread
from mindspore_serving.core.buffers import Buffer, BufferList, contiguous, join
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.v2.answering import model_of
from mindspore_serving.frontends.v2.decompression import FORMATS
from mindspore_serving.frontends.v2.inference import V2, Selected
from mindspore_serving.frontends.v2.models import V2Model
from mindspore_serving.wire.json_shape import SMALL
from mindspore_serving.wire.v2 import json_body
from mindspore_serving.wire.v2.request import InferRequest, ReadRegion

LARGE_JSON = 1 << 20  # bytes; more are parsed on a thread
HEADER_LENGTH = "inference-header-content-length"


async def infer(v2: V2, http: Request) -> Response:
    """Call a model.  Raises ServingError, and ClientDisconnect if the client disconnects."""
    headers: dict[str, str] = {}
    name = model_of(http)
    async with v2.decompressor.body(http, v2.state.max_body) as body:
        model = v2.models.find(*name)
        arguments = model, body, http.headers.get(HEADER_LENGTH), v2.memory.read
        is_large = arguments[2] is None and len(body) > LARGE_JSON
        request = await on_thread("bodies", parse, *arguments) if is_large else parse(*arguments)
        outputs = await while_connected(
            http, v2.infer(model, request, request_options_of(http), headers.update)
        )
        response = await _respond(http, model, request, outputs)
    response.headers.update(headers)
    return response


def parse(
    model: V2Model, body: Buffer, length: str | None, read_region: ReadRegion
) -> InferRequest:
    """Parse a body; the header `length` has the number of its bytes that are JSON.

    Raises InvalidInputs.
    """
    if length is None:
        return json_body.parse(body, None, read_region, signature=model.signature)
    if not (length.isascii() and length.isdigit() and len(length) <= 18):
        raise InvalidInputs(f"{HEADER_LENGTH} is {length[:32]!r}, expected a number of bytes")
    if int(length) == 0:
        return json_body.parse_raw(body, model.signature.inputs)
    return json_body.parse(body, int(length), read_region, signature=model.signature)


def to_answer(
    model: V2Model, request: InferRequest, outputs: Selected
) -> tuple[int | None, bytes | BufferList]:
    """Return the number of bytes of an answer that are JSON, None for all, and the answer."""
    version = outputs.version or model.version
    json, tail = json_body.answer(model.name, version, request.id, outputs)
    is_binary = any(output.is_binary and output.region is None for _, output in outputs)
    return (len(json), join((json, *tail))) if is_binary else (None, json)


async def _respond(
    http: Request, model: V2Model, request: InferRequest, outputs: Selected
) -> Response:
    length, answer = to_answer(model, request, outputs)
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
    """Return the compression to use, "" for none.

    An answer is compressed only if accept-encoding has a single format, as clients of the protocol
    send it: browsers and libraries list formats in every request.
    """
    name = header.strip().lower()
    return name if name in FORMATS else ""


def _compress(body: bytes, encoding: str) -> bytes:
    encoder = zlib.compressobj(wbits=FORMATS[encoding])
    return encoder.compress(body) + encoder.flush()
