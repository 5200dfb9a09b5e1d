"""Language models by protocol v2, with the tensors of Triton's vLLM backend.

Answers are complete texts, or streams of chunks.
"""

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias

from mindspore_serving.core.llm_messages import Chunk, Generate, RequestRefused
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs, Overloaded, ServingError
from mindspore_serving.frontends.chat.fields import capped_header, field_of_length
from mindspore_serving.frontends.chat.models import ServedModel
from mindspore_serving.frontends.request_options import RequestOptions
from mindspore_serving.frontends.v2.models import TEXT_INPUT
from mindspore_serving.frontends.v2.schemas import FIELDS, read
from mindspore_serving.wire.v2.datatypes import BOOL, BYTES
from mindspore_serving.wire.v2.request import InferRequest
from mindspore_serving.wire.v2.values import elements

_KINDS = {
    TEXT_INPUT: BYTES,
    "sampling_parameters": BYTES,
    "stream": BOOL,
    "exclude_input_in_output": BOOL,
}
_FLAGS = ("stream", "exclude_input_in_output")  # inputs or parameters


Headers: TypeAlias = Callable[[Mapping[str, str]], None]
"""Function that takes the headers of an answer before its first chunk."""


@dataclass(slots=True)
class TextRequest:
    """A request to a language model.

    `prefix` comes before each text of the answer.  `length` is the name of the field with the
    number of tokens, "" for none.
    """

    model: ServedModel
    generate: Generate
    options: RequestOptions
    prefix: str
    length: str
    version: int = 0  # that a traffic rule has chosen, once the answer has begun


def to_generate(
    model: ServedModel, request: InferRequest, options: RequestOptions, *, is_stream: bool | None
) -> TextRequest:
    """Make a request of tensors; with None for `is_stream` the client decides.

    Raises InvalidInputs.
    """
    inputs = _inputs(request)
    sampling = _sampling(inputs.pop("sampling_parameters", None))
    flags = {name: bool(inputs[name]) for name in _FLAGS if name in inputs}
    fields = {**request.parameters, **sampling, **flags, TEXT_INPUT: inputs[TEXT_INPUT]}
    return of_fields(model, fields, options, is_stream=is_stream)


def of_fields(
    model: ServedModel,
    fields: Mapping[str, Any],
    options: RequestOptions,
    *,
    is_stream: bool | None,
) -> TextRequest:
    """Make a request of the prompt and sampling parameters by name.  Raises InvalidInputs."""
    streams, has_prompt = _choose(fields, is_stream)
    prompt = str(fields[TEXT_INPUT])
    sampling = read({name: value for name, value in fields.items() if value is not None})
    FIELDS.refuse(sampling)
    generate = Generate(
        prompt=prompt,
        params=FIELDS.params(sampling, model.card, model.card.defaults),
        is_stream=streams,
        adapter=model.adapter,
        **FIELDS.options(sampling, model.card),
    )
    length = field_of_length(FIELDS, sampling)
    return TextRequest(model, generate, options, prompt if has_prompt else "", length)


async def generate(request: TextRequest, headers: Headers) -> list[str]:
    """Return the texts of an answer, one for each of `n` completions.  Raises ServingError."""
    texts = [""] * request.generate.params.n
    async with aclosing(_chunks(request, headers)) as chunks:
        async for chunk in chunks:
            texts[chunk.index] += chunk.text
    return [request.prefix + text for text in texts]


async def stream(request: TextRequest, headers: Headers) -> AsyncGenerator[list[str], None]:
    """Iterate over the chunks of an answer, each a list of one text.  Raises ServingError."""
    if not request.generate.is_stream:
        yield await generate(request, headers)
        return
    if request.generate.params.n != 1:
        raise InvalidInputs("n is over 1, expected 1 in a stream")
    async with aclosing(_chunks(request, headers)) as chunks:
        async for chunk in chunks:
            if chunk.text:
                yield [chunk.text]


async def _chunks(request: TextRequest, headers: Headers) -> AsyncGenerator[Chunk, None]:
    with request.model.generate(request.generate, request.options) as generation:
        try:
            started = await generation.begin()
            request.version = generation.version
        except RequestRefused as error:
            refused = error.refused
            if refused.reason == "overloaded":
                raise Overloaded(refused.text, refused.retry_after) from None
            raise
        headers(capped_header(request.length, started))
        async for event in generation:
            if not isinstance(event, Chunk):
                continue
            if event.finish_reason == "error":
                raise event.to_error()
            if event.finish_reason == "abort":
                raise ServingError("the answer ended early")
            yield event


def _inputs(request: InferRequest) -> dict[str, Value]:
    """Return the single element of each input by name."""
    inputs: dict[str, Value] = {}
    for tensor in request.body.inputs:
        kind = _KINDS.get(tensor.name)
        if kind is None:
            raise InvalidInputs(
                f"unexpected input '{tensor.name[:64]}' for a language model, expected: "
                f"{', '.join(_KINDS)}"
            )
        values: Sequence[Value] = elements(tensor)
        if tensor.datatype is not kind or len(values) != 1:
            raise InvalidInputs(
                f"input '{tensor.name}' is {tensor.datatype.name} {list(tensor.shape)}, expected "
                f"{kind.name} with one element"
            )
        inputs[tensor.name] = values[0]
    if not isinstance(inputs.get(TEXT_INPUT), str):
        raise InvalidInputs(f"input '{TEXT_INPUT}' is missing, or not UTF-8")
    return inputs


def _sampling(text: object) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        decoded = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise InvalidInputs("input 'sampling_parameters' is not a JSON object")
    return decoded


def _choose(fields: Mapping[str, Any], is_stream: bool | None) -> tuple[bool, bool]:
    """Return whether to stream, and whether the answer has the prompt: not in streams."""
    for name in _FLAGS:
        if not isinstance(fields.get(name), bool | None):
            raise InvalidInputs(f"parameter {name} is {fields[name]!r}, expected true or false")
    excludes = fields.get("exclude_input_in_output")
    streams = bool(fields.get("stream")) if is_stream is None else is_stream
    if streams and excludes is False:
        raise InvalidInputs("exclude_input_in_output is false, expected true in a stream")
    return streams, not streams and not excludes
