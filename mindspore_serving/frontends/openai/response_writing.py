"""The object of a response, as a whole or as the events of a stream."""

import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from mindspore_serving.core.llm_messages import Chunk, Event, Finished, GeneratedToken
from mindspore_serving.frontends import sse
from mindspore_serving.frontends.chat.errors import to_failure
from mindspore_serving.frontends.chat.models import Generation, finish_reason
from mindspore_serving.frontends.openai.answers import OpenAIResponse
from mindspore_serving.frontends.openai.response_items import ResponseOutput
from mindspore_serving.frontends.openai.response_requests import ResponseRequest

Object = dict[str, Any]

_encode = msgspec.json.Encoder().encode


class ResponseWriting:
    """One response: what is known from the start, and what the model has written so far."""

    def __init__(self, body: ResponseRequest, model: str) -> None:
        self._body = body
        self._model = model
        self._name = f"resp_{secrets.token_hex(16)}"
        self._created = int(time.time())
        self._output = ResponseOutput()
        self._tokens: list[GeneratedToken] = []  # that no event has had yet
        self._status = "in_progress"
        self._usage: Object | None = None

    def take(self, event: Event) -> list[Object]:
        """The events that an event of the model makes.  Raises ServingError if it failed."""
        if isinstance(event, Chunk):
            return self._take_chunk(event)
        if isinstance(event, Finished):
            self._usage = _to_usage(event)
        return []

    def to_object(self, error: Object | None = None) -> OpenAIResponse:
        """The response as it is now."""
        body, status = self._body, "failed" if error else self._status
        is_cut = status == "incomplete"
        text = msgspec.to_builtins(body.text.format) if body.text and body.text.format else None
        thinking = body.reasoning
        return OpenAIResponse(
            id=self._name,
            created_at=self._created,
            completed_at=int(time.time()) if status == "completed" else None,
            status=status,
            error=error,
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            model=self._model,
            output=self._output.items,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            reasoning={"effort": thinking.effort if thinking else None, "summary": None},
            store=body.store is not False,
            temperature=body.temperature,
            text={"format": text or {"type": "text"}},
            tool_choice="auto" if body.tool_choice is None else body.tool_choice,
            tools=[_in_one_line(tool) for tool in body.tools or ()],
            top_logprobs=body.top_logprobs or 0,
            top_p=body.top_p,
            usage=self._usage,
            user=body.user,
        )

    def _take_chunk(self, chunk: Chunk) -> list[Object]:
        reason = finish_reason(chunk)
        self._tokens += chunk.tokens or ()
        events = self._output.take(chunk, self._tokens)
        if events:
            self._tokens = []
        if reason is not None:
            self._status = "incomplete" if reason == "length" else "completed"
            events += self._output.finish(self._status)
        return events


def _to_usage(finished: Finished) -> Object:
    return {
        "input_tokens": finished.num_prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": finished.num_cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": finished.num_generated_tokens,
        "output_tokens_details": {"reasoning_tokens": finished.num_reasoning_tokens},
        "total_tokens": finished.num_prompt_tokens + finished.num_generated_tokens,
    }


async def write_whole(generation: Generation, writing: ResponseWriting) -> OpenAIResponse:
    """The response of `generation`, which has begun, when it is complete.  Raises ServingError."""
    async for event in generation:
        writing.take(event)
    return writing.to_object()


async def stream_response(
    generation: Generation, writing: ResponseWriting, keep: Callable[[OpenAIResponse], None]
) -> AsyncIterator[bytes]:
    """The events of the response of `generation`, which has begun; `keep` gets it when it is
    complete.
    """
    numbers = _Numbers()
    for name in ("response.created", "response.in_progress"):
        yield numbers.write({"type": name, "response": writing.to_object()})
    try:
        async for event in generation:
            made = writing.take(event)
            if made:
                yield b"".join([numbers.write(one) for one in made])
        whole = writing.to_object()
        keep(whole)
    except Exception as error:
        failure = to_failure(error)
        whole = writing.to_object({"code": "server_error", "message": failure.text})
    yield numbers.write({"type": f"response.{whole.status}", "response": whole})


class _Numbers:
    """Numbers the events of a stream, from 0 on."""

    def __init__(self) -> None:
        self._next = 0

    def write(self, event: Object) -> bytes:
        event["sequence_number"] = self._next
        self._next += 1
        return sse.event(_encode(event), event["type"].encode())


def _in_one_line(text: msgspec.Raw) -> msgspec.Raw:
    """JSON for an event; its strings have no line ends as they are."""
    return msgspec.Raw(bytes(text).replace(b"\n", b" ").replace(b"\r", b" "))
