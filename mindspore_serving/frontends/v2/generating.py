"""POST .../generate and .../generate_stream of language models.

The answer is a text, or its chunks as server-sent events.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.frontends import sse
from mindspore_serving.frontends.bodies import read_json
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.json_answer import to_json
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.v2 import language
from mindspore_serving.frontends.v2.answering import model_of
from mindspore_serving.frontends.v2.answers import TextAnswer
from mindspore_serving.frontends.v2.errors import to_body
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.frontends.v2.language import TextRequest
from mindspore_serving.frontends.v2.models import TEXT_INPUT

_encode = msgspec.json.Encoder().encode
Chunks: TypeAlias = "AsyncGenerator[list[str], None]"


async def generate(v2: V2, http: Request) -> Response:
    """Answer a prompt with a text.  Raises ServingError and ClientDisconnect."""
    answer, request = await _read(v2, http)
    headers: dict[str, str] = {}
    texts = await while_connected(http, language.generate(request, headers.update))
    _set_version(answer, request)
    return to_json(_with_texts(answer, texts), headers=headers)


async def generate_stream(v2: V2, http: Request) -> Response:
    """Answer a prompt with events.

    Raises ServingError before the first chunk; afterwards errors are events.
    """
    answer, request = await _read(v2, http, is_stream=True)
    headers: dict[str, str] = {}
    chunks = language.stream(request, headers.update)
    first = await while_connected(http, _next(chunks))
    _set_version(answer, request)
    return sse.EventStream(_events(answer, first, chunks), headers)


async def _next(chunks: Chunks) -> list[str] | None:
    return await anext(chunks, None)


async def _events(
    answer: TextAnswer, texts: list[str] | None, chunks: Chunks
) -> AsyncIterator[bytes]:
    try:
        async with aclosing(chunks):
            while texts is not None:
                yield sse.event(_encode(_with_texts(answer, texts)))
                texts = await _next(chunks)
    except Exception as error:
        yield sse.event(to_body(error))


async def _read(
    v2: V2, http: Request, *, is_stream: bool = False
) -> tuple[TextAnswer, TextRequest]:
    """Return an answer without its text, and the request to the model."""
    name = model_of(http)
    body = await read_json(http, v2.state.max_body, v2.models.limits)
    model = v2.models.find(*name)
    if model.language is None:
        raise InvalidInputs(f"'{model.name}' is not a language model: call infer")
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputs(f"failed to parse the request JSON: {error}") from None
    parameters = fields.get("parameters") or {} if isinstance(fields, dict) else None
    if not isinstance(parameters, dict):
        raise InvalidInputs(f"the body is not a JSON object with '{TEXT_INPUT}'")
    prompt = fields.get(TEXT_INPUT)
    if not isinstance(prompt, str):
        raise InvalidInputs(f"'{TEXT_INPUT}' is missing, expected a text")
    sampling = {key: value for key, value in fields.items() if key != "parameters"} | parameters
    request = language.of_fields(
        model.language, sampling, request_options_of(http), is_stream=is_stream
    )
    request_id = fields.get("id")
    answer = TextAnswer(
        model_name=model.name,
        model_version=str(model.version),
        id=request_id if isinstance(request_id, str) else msgspec.UNSET,
        text_output="",
    )
    return answer, request


def _set_version(answer: TextAnswer, request: TextRequest) -> None:
    if request.version:
        answer.model_version = str(request.version)


def _with_texts(answer: TextAnswer, texts: list[str]) -> TextAnswer:
    answer.text_output = texts[0] if len(texts) == 1 else texts
    return answer
