"""Handlers of POST /models/NAME... and GET /serving/... of llm-serving.

The latter answer with one server-sent event: the load of the model, or its description.
"""

from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving import __version__
from mindspore_serving.core.llm_messages import Started
from mindspore_serving.errors import (
    DeadlineExceeded,
    NotFound,
    ServingError,
    UpstreamFailed,
)
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.bodies import read_json
from mindspore_serving.frontends.chat.fields import capped_header
from mindspore_serving.frontends.chat.models import Generation, LanguageModels, ServedModel
from mindspore_serving.frontends.disconnect import OwnedStream, while_connected
from mindspore_serving.frontends.llm_serving.answers import LlmServingModel, to_spaced_json
from mindspore_serving.frontends.llm_serving.frames import (
    SSE,
    Form,
    StreamFrames,
    frames_of,
    to_event,
)
from mindspore_serving.frontends.llm_serving.requests import (
    ClientRequest,
    LlmServingParameters,
    decode,
    to_request,
)
from mindspore_serving.frontends.llm_serving.writing import Writer, chunks_of, to_fault
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.sse import EventStream

_MAX_SHOWN = 64  # characters of a name
ALIASES = ("llama2", "internlm")  # names of the only model, unless a model has such a name


@dataclass(frozen=True, slots=True)
class LlmServing:
    """The protocol of one server; streams have the form of the first release, "r21", or "bare"."""

    state: AppState
    form: Form = "r21"


async def answer(served: LlmServing, http: Request, *, is_stream: bool | None = None) -> Response:
    """Answer with a stream or a text; with None for `is_stream` the body decides."""
    state = served.state
    model = find_model(state.models, http.path_params["name"])
    body = decode(await read_json(http, state.max_body, state.models.limits))
    if is_stream is not None:
        body.stream = is_stream
    return await _answer(model, served.form, http, body)


def find_model(models: LanguageModels, name: str) -> ServedModel:
    """Return a model by name or alias.  Raises NotFound."""
    try:
        return models.find(name)
    except NotFound:
        if ":" in name:
            text = f"there is no route POST /models/{name[:_MAX_SHOWN]}"
            raise NotFound(f"{text}; did you mean /model/{name[:_MAX_SHOWN]}?") from None
        if name not in ALIASES:
            raise
        return models.find(None)


async def _answer(
    model: ServedModel, form: Form, request: Request, body: ClientRequest
) -> Response:
    parameters = body.parameters or LlmServingParameters()
    writer = Writer(None, parameters.seed or 0, bool(parameters.details))
    with ExitStack() as stack:
        generate = to_request(body, model, is_stream=body.stream)
        generation = model.generate(generate, request_options_of(request))
        stack.enter_context(generation)
        try:
            writer.started = await while_connected(request, generation.begin())
        except ServingError as error:
            writer.fail(to_fault(error))
        headers = _capped(parameters, writer.started)
        if not body.stream:
            await while_connected(request, _gather(generation, writer))
            line = to_spaced_json(writer.answer()) + b"\n"
            return Response(line, 200, headers, "application/json")
        frames = frames_of(form, parameters.return_protocol)
        events = _events(generation, writer, frames, has_last=bool(parameters.return_full_text))
        stream = OwnedStream(events, stack.pop_all())
        return EventStream(stream, {**frames.headers, **headers}, ping=frames.ping)


def _capped(parameters: LlmServingParameters, started: Started | None) -> dict[str, str]:
    """Return the header for answers that are shorter than requested, if this is one."""
    if started is None or parameters.max_new_tokens is None:
        return {}
    return capped_header("parameters.max_new_tokens", started)


async def _gather(generation: Generation, writer: Writer) -> None:
    if writer.started is not None:
        async for chunk in chunks_of(generation, writer, raises=(DeadlineExceeded, UpstreamFailed)):
            writer.write_whole(chunk)


async def _events(
    generation: Generation, writer: Writer, frames: StreamFrames, *, has_last: bool
) -> AsyncIterator[bytes]:
    count = 0
    for count, shown in enumerate(writer.tokens, 1):  # the error of a refused request
        yield frames.chunk(count, shown)
    if writer.started is not None:
        async for chunk in chunks_of(generation, writer):
            frame = b""
            for shown in writer.write(chunk):
                count += 1
                frame += frames.chunk(count, shown)
            if frame:
                yield frame
    if has_last:
        yield frames.last(writer.answer())


def batch_size(state: AppState) -> Response:
    """Answer with the number of running sequences, at least 1."""
    return _message(max(1, _engine_total(state, "num_running")))


def request_numbers(state: AppState) -> Response:
    """Answer with the number of queued requests."""
    return _message(_num_waiting(state))


def model_info(state: AppState) -> Response:
    """Answer with the first model and its limits."""
    model = msgspec.json.encode(_describe(state.models.find(None), _num_waiting(state)))
    return Response(b"data: %b\r\n\r\n" % model, headers=SSE)


def _describe(model: ServedModel, num_waiting: int) -> LlmServingModel:
    card = model.card
    return LlmServingModel(
        max_batch_total_tokens=card.max_model_len * card.max_num_seqs,
        max_concurrent_requests=num_waiting,
        max_input_length=card.max_model_len,
        max_total_tokens=card.max_num_seqs,
        model_device_type=card.runtime,
        model_dtype=card.dtype,
        model_id=model.name,
        version=__version__,
    )


def _num_waiting(state: AppState) -> int:
    """Return the number of requests that are queued, in the master and in workers."""
    waiting = sum(model.get("requests", {}).get("waiting", 0) for model in _models(state))
    return int(waiting) + _engine_total(state, "num_waiting")


def _engine_total(state: AppState, name: str) -> int:
    return int(sum(model.get("engine", {}).get(name, 0) for model in _models(state)))


def _models(state: AppState) -> list[dict[str, Any]]:
    return [row for row in state.control.observe() if "model" in row]


def _message(number: int) -> Response:
    return Response(to_event(number), headers=SSE)
