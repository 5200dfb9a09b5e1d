"""POST /, /generate and /generate_stream: a job's answer with its headers, and its numbers."""

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mindspore_serving.errors import ServingError
from mindspore_serving.frontends import sse
from mindspore_serving.frontends.disconnect import while_there
from mindspore_serving.frontends.site import Site
from mindspore_serving.frontends.sse import EventStream
from mindspore_serving.frontends.tgi.answers import encode
from mindspore_serving.frontends.tgi.checks import Job, Limits, find_model, to_job
from mindspore_serving.frontends.tgi.errors import TgiError, overloaded, to_tgi_error
from mindspore_serving.frontends.tgi.recorder import Recorder
from mindspore_serving.frontends.tgi.requests import (
    COMPAT,
    GENERATE,
    GenerateRequest,
    decode,
    read_json,
)
from mindspore_serving.frontends.tgi.writing import Times, write_stream, write_whole


class Generating:
    """Answers requests for text, and counts them."""

    def __init__(self, site: Site, limits: Limits, recorder: Recorder) -> None:
        self._site = site
        self._limits = limits
        self._recorder = recorder

    async def generate(self, http: Request) -> Response:
        asked = decode(await read_json(http, self._site.max_body), GENERATE)
        return await self._whole(http, asked, in_list=False)

    async def generate_stream(self, http: Request) -> Response:
        return self._stream(decode(await read_json(http, self._site.max_body), GENERATE))

    async def compat(self, http: Request) -> Response:
        return await self.answer_compat(http, await read_json(http, self._site.max_body))

    async def answer_compat(self, http: Request, body: bytes) -> Response:
        """POST /, whose body was read."""
        asked = decode(body, COMPAT)
        if asked.parameters.return_full_text is None:
            asked.parameters.return_full_text = True
        if asked.stream:
            return self._stream(asked)
        return await self._whole(http, asked, in_list=True)

    async def _whole(self, http: Request, asked: GenerateRequest, *, in_list: bool) -> Response:
        times, job = Times(), None
        self._recorder.count_request()
        try:
            with self._admitted():
                job = self._job(asked, is_stream=False)
                answer = await while_there(http, write_whole(job, times))
        except ClientDisconnect:
            self._recorder.count_dropped()
            raise
        except Exception as error:
            return self._fail(error).to_response()
        finally:
            self._observe(job, times)
        body = encode([answer] if in_list else answer)
        return Response(body, headers=_headers(job, times), media_type="application/json")

    def _stream(self, asked: GenerateRequest) -> Response:
        """All of it is told in events, errors too; the status is 200."""
        times = Times()
        self._recorder.count_request()
        headers = {"x-compute-characters": str(len(asked.inputs))}
        try:
            job = self._job(asked, is_stream=True)
        except ServingError as error:
            events = self._tell_failure(error)
        else:
            headers |= {"x-compute-type": job.model.card.runtime}
            events = self._events(job, times)
        return EventStream(events, {**headers, "content-type": "text/event-stream"})

    async def _tell_failure(self, error: ServingError) -> AsyncIterator[bytes]:
        yield sse.event(self._fail(error).to_body())

    async def _events(self, job: Job, times: Times) -> AsyncIterator[bytes]:
        is_told = False
        try:
            with self._admitted():
                async with aclosing(write_stream(job, times)) as events:
                    async for event in events:
                        yield event
        except Exception as error:
            is_told = True
            yield sse.event(self._fail(error).to_body())
        finally:
            self._observe(job, times)
            if not times.ended and not is_told:
                self._recorder.count_dropped()

    def _job(self, asked: GenerateRequest, *, is_stream: bool) -> Job:
        parameters = asked.parameters
        model = find_model(self._site.models, parameters.adapter_id)
        return to_job(model, asked.inputs, parameters, self._limits, is_stream=is_stream)

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        """One more is under way.  Raises TgiError if that is too many."""
        if self._recorder.num_open >= self._limits.max_concurrent_requests:
            raise overloaded()
        self._recorder.num_open += 1
        try:
            yield
        finally:
            self._recorder.num_open -= 1

    def _fail(self, error: Exception) -> TgiError:
        told = to_tgi_error(error)
        self._recorder.count_failure(told)
        return told

    def _observe(self, job: Job | None, times: Times) -> None:
        if job is None or not times.begun:
            return
        most = job.model.card.max_model_len
        self._recorder.observe_taken(times, job.max_new_tokens, most)
        if times.ended:
            self._recorder.observe_done(times, most)


def _headers(job: Job, times: Times) -> dict[str, str]:
    """Times in milliseconds, but for x-compute-time."""
    total, inference = times.ended - times.started, times.inference
    count = times.num_generated_tokens
    return {
        "x-compute-type": job.model.card.runtime,
        "x-compute-time": str(total),
        "x-compute-characters": str(job.num_characters),
        "x-total-time": str(int(total * 1000)),
        "x-validation-time": str(int((times.begun - times.started) * 1000)),
        "x-queue-time": str(int(times.queued * 1000)),
        "x-inference-time": str(int(inference * 1000)),
        "x-time-per-token": str(int(inference * 1000 / max(1, count))),
        "x-prompt-tokens": str(times.num_prompt_tokens),
        "x-generated-tokens": str(count),
    }
