"""POST /models/NAME and below it; GET /serving/..., how busy the model is, and what it is, as
server-sent events of one message.
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
from mindspore_serving.frontends.disconnect import Owned, while_there
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
from mindspore_serving.frontends.sse import EventStream
from mindspore_serving.frontends.terms import terms_of

ALIASES = ("llama2", "internlm")  # of the only model, unless one is really called so


@dataclass(frozen=True, slots=True)
class LlmServing:
    """The protocol of one server; `form` is that of streams: "r21", the first release's, or "bare",
    the later one's.
    """

    state: AppState
    form: Form = "r21"


async def answer(served: LlmServing, http: Request, *, is_stream: bool | None = None) -> Response:
    """A stream if `is_stream`; of None, if the body says so."""
    state = served.state
    body = decode(await read_json(http, state.max_body, state.models.limits))
    if is_stream is not None:
        body.stream = is_stream
    return await _answer(state, served.form, http, body)


def find_model(models: LanguageModels, name: str) -> ServedModel:
    """Raises NotFound."""
    try:
        return models.find(name)
    except NotFound:
        if name not in ALIASES:
            raise
        return models.find(None)


async def _answer(state: AppState, form: Form, request: Request, body: ClientRequest) -> Response:
    model = find_model(state.models, request.path_params["name"])
    given = body.parameters or LlmServingParameters()
    writer = Writer(None, given.seed or 0, bool(given.details))
    with ExitStack() as stack:
        wanted = to_request(body, model, is_stream=body.stream)
        generation = model.generate(wanted, terms_of(request))
        stack.enter_context(generation)
        try:
            writer.started = await while_there(request, generation.begin())
        except ServingError as error:
            writer.fail(to_fault(error))
        headers = _capped(given, writer.started)
        if not body.stream:
            await while_there(request, _gather(generation, writer))
            whole = to_spaced_json(writer.answer()) + b"\n"
            return Response(whole, 200, headers, "application/json")
        frames = frames_of(form, given.return_protocol)
        events = _events(generation, writer, frames, has_last=bool(given.return_full_text))
        owned = Owned(events, stack.pop_all())
        return EventStream(owned, {**frames.headers, **headers}, ping=frames.ping)


def _capped(given: LlmServingParameters, started: Started | None) -> dict[str, str]:
    """The header that says so, if the answer is shorter than was asked for."""
    if started is None or given.max_new_tokens is None:
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
    for count, shown in enumerate(writer.tokens, 1):  # why the request was not accepted
        yield frames.chunk(count, shown)
    if writer.started is not None:
        async for chunk in chunks_of(generation, writer):
            made = b""
            for shown in writer.write(chunk):
                count += 1
                made += frames.chunk(count, shown)
            if made:
                yield made
    if has_last:
        yield frames.last(writer.answer())


def batch_size(state: AppState) -> Response:
    return _message(max(1, _engine_total(state, "num_running")))


def request_numbers(state: AppState) -> Response:
    return _message(_num_waiting(state))


def model_info(state: AppState) -> Response:
    found = msgspec.json.encode(_describe(state.models.find(None), _num_waiting(state)))
    return Response(b"data: %b\r\n\r\n" % found, headers=SSE)


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
    """Requests that wait for a worker, and in workers for room."""
    waiting = sum(one.get("requests", {}).get("waiting", 0) for one in _models(state))
    return int(waiting) + _engine_total(state, "num_waiting")


def _engine_total(state: AppState, name: str) -> int:
    return int(sum(one.get("engine", {}).get(name, 0) for one in _models(state)))


def _models(state: AppState) -> list[dict[str, Any]]:
    return [one for one in state.control.observe() if "model" in one]


def _message(number: int) -> Response:
    return Response(to_event(number), headers=SSE)
