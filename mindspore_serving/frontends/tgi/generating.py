"""POST /, /generate and /generate_stream: answers, their headers, and metrics."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mindspore_serving.errors import ServableUnavailable, ServingError
from mindspore_serving.frontends.app_state import AppState
from mindspore_serving.frontends.chat.fields import CAPPED
from mindspore_serving.frontends.chat.models import Generation
from mindspore_serving.frontends.chat.unknown_fields import HEADER
from mindspore_serving.frontends.disconnect import OwnedStream, while_connected
from mindspore_serving.frontends.request_options import request_options_of
from mindspore_serving.frontends.sse import EventStream
from mindspore_serving.frontends.tgi.answers import encode
from mindspore_serving.frontends.tgi.checks import CheckedRequest, RequestLimits, check, find_model
from mindspore_serving.frontends.tgi.errors import TgiError, overloaded, to_tgi_error
from mindspore_serving.frontends.tgi.metrics import Recorder
from mindspore_serving.frontends.tgi.requests import (
    COMPAT,
    GENERATE,
    TgiGenerateRequest,
    decode,
    find_unknown,
    read_json,
    refuse_embedding,
)
from mindspore_serving.frontends.tgi.writing import (
    StreamWriter,
    Times,
    collect_answer,
    write_stream,
)


class TgiService:
    """Answers requests for text, and counts them in `recorder`."""

    def __init__(
        self, state: AppState, limits: RequestLimits | None = None, recorder: Recorder | None = None
    ) -> None:
        """Bind to `state`; without `recorder` nothing is shown as metrics."""
        self.state = state
        self.limits = limits or RequestLimits()
        self.recorder = recorder or Recorder()

    async def generate(self, http: Request) -> Response:
        body = await read_json(http, self.state)
        unknown = find_unknown(body)
        parsed = decode(body, GENERATE)
        return _name_ignored(unknown, await self._complete(http, parsed, in_list=False))

    async def generate_stream(self, http: Request) -> Response:
        body = await read_json(http, self.state)
        unknown = find_unknown(body)
        parsed = decode(body, GENERATE)
        return _name_ignored(unknown, await self._stream(http, parsed))

    async def compat(self, http: Request) -> Response:
        return await self.answer_compat(http, await read_json(http, self.state))

    async def answer_compat(self, http: Request, body: bytes) -> Response:
        """Answer POST /, whose body was read."""
        unknown = find_unknown(body)
        parsed = decode(body, COMPAT)
        if parsed.parameters.return_full_text is None:
            parsed.parameters.return_full_text = True
        refuse_embedding(unknown)
        if parsed.stream:
            return _name_ignored(unknown, await self._stream(http, parsed))
        return _name_ignored(unknown, await self._complete(http, parsed, in_list=True))

    async def _complete(
        self, http: Request, body: TgiGenerateRequest, *, in_list: bool
    ) -> Response:
        """Return the complete answer, as a list if `in_list`."""
        times, request = Times(), None
        self.recorder.count_request()
        try:
            with self._admitted():
                request = self._check(http, body, is_stream=False)
                answer = await while_connected(http, collect_answer(request, times))
        except ClientDisconnect:
            self.recorder.count_dropped()
            raise
        except Exception as error:
            return self._fail(error).to_response()
        finally:
            self._observe(request, times)
        content = encode([answer] if in_list else answer)
        return Response(content, headers=_headers(request, times), media_type="application/json")

    async def _stream(self, http: Request, body: TgiGenerateRequest) -> Response:
        """Return the stream of events; errors are events, too.

        The status is 200 once there is a model.
        """
        self.recorder.count_request()
        headers = {
            "x-compute-characters": str(len(body.inputs)),
            "content-type": "text/event-stream",
        }
        try:
            request = self._check(http, body, is_stream=True)
        except ServableUnavailable:
            raise  # no model yet: answered with its status, as a stream would have status 200
        except ServingError as error:
            return EventStream(self._failure(error), headers)
        headers |= {"x-compute-type": request.model.card.runtime}
        return await self._begin(http, request, headers)

    async def _begin(
        self, http: Request, request: CheckedRequest, headers: dict[str, str]
    ) -> Response:
        """Return the stream of a request that the model accepted, or a stream with its error."""
        times = Times()
        with ExitStack() as stack:
            try:
                stack.enter_context(self._admitted())
                generation = request.model.generate(request.generate, request.options)
                stack.enter_context(generation)
                started = await while_connected(http, generation.begin())
            except ClientDisconnect:
                self.recorder.count_dropped()
                raise
            except Exception as error:
                return EventStream(self._failure(error), headers)
            times.begin(started)
            events = self._events(generation, StreamWriter(request, started), request, times)
            headers |= _capped(request, times)
            return EventStream(OwnedStream(events, stack.pop_all()), headers)

    async def _failure(self, error: Exception) -> AsyncIterator[bytes]:
        yield self._fail(error).to_event()

    async def _events(
        self, generation: Generation, writer: StreamWriter, request: CheckedRequest, times: Times
    ) -> AsyncIterator[bytes]:
        """Iterate over the events of a stream and count how it ended."""
        has_failed = False
        try:
            async with aclosing(write_stream(generation, writer, times)) as events:
                async for event in events:
                    yield event
        except Exception as error:
            has_failed = True
            yield self._fail(error).to_event()
        finally:
            self._observe(request, times)
            if not times.ended and not has_failed:
                self.recorder.count_dropped()

    def _check(self, http: Request, body: TgiGenerateRequest, *, is_stream: bool) -> CheckedRequest:
        parameters, options = body.parameters, request_options_of(http)
        model = find_model(self.state.models, parameters.adapter_id)
        return check(
            model, body.inputs, parameters, self.limits, options=options, is_stream=is_stream
        )

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        """Count the request as open until the end of the block.

        Raises TgiError if too many are open.
        """
        if self.recorder.num_open >= self.limits.max_concurrent_requests:
            raise overloaded()
        self.recorder.num_open += 1
        try:
            yield
        finally:
            self.recorder.num_open -= 1

    def _fail(self, error: Exception) -> TgiError:
        failure = to_tgi_error(error)
        self.recorder.count_failure(failure)
        return failure

    def _observe(self, request: CheckedRequest | None, times: Times) -> None:
        if request is None or not times.begun:
            return
        max_total = request.model.card.max_model_len
        self.recorder.observe_accepted(times, request.max_new_tokens, max_total)
        if times.ended:
            self.recorder.observe_done(times, max_total)


def _name_ignored(unknown: Sequence[str], response: Response) -> Response:
    """Add the names of ignored fields to the headers of `response`."""
    if unknown:
        response.headers[HEADER] = ", ".join(unknown)
    return response


def _headers(request: CheckedRequest, times: Times) -> dict[str, str]:
    """Return TGI's headers; times are in milliseconds, x-compute-time in seconds."""
    total, inference = times.ended - times.started, times.inference
    count = times.num_generated_tokens
    return {
        "x-compute-type": request.model.card.runtime,
        "x-compute-time": str(total),
        "x-compute-characters": str(request.num_characters),
        "x-total-time": str(int(total * 1000)),
        "x-validation-time": str(int((times.begun - times.started) * 1000)),
        "x-queue-time": str(int(times.queued * 1000)),
        "x-inference-time": str(int(inference * 1000)),
        "x-time-per-token": str(int(inference * 1000 / max(1, count))),
        "x-prompt-tokens": str(times.num_prompt_tokens),
        "x-generated-tokens": str(count),
        **_capped(request, times),
    }


def _capped(request: CheckedRequest, times: Times) -> dict[str, str]:
    is_capped = times.is_capped and request.max_new_tokens is not None
    return {CAPPED: "parameters.max_new_tokens"} if is_capped else {}
