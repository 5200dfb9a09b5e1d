"""The object of a response: complete, or as the events of a stream."""

import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from mindspore_serving.core.llm_messages import Chunk, Finished, GeneratedToken
from mindspore_serving.frontends import sse
from mindspore_serving.frontends.chat.errors import to_failure
from mindspore_serving.frontends.chat.mcp_rounds import McpGeneration, RoundEvent
from mindspore_serving.frontends.chat.mcp_tools import McpListed, McpOffer, McpResult
from mindspore_serving.frontends.chat.models import Generation, finish_reason
from mindspore_serving.frontends.openai.answers import OpenAIResponse
from mindspore_serving.frontends.openai.response_items import ResponseOutput
from mindspore_serving.frontends.openai.response_mcp import called_tools
from mindspore_serving.frontends.openai.response_requests import (
    ENCODED_REASONING,
    ResponseRequest,
    name_of,
)
from mindspore_serving.frontends.openai.response_tools import read_tools

Object = dict[str, Any]

_encode = msgspec.json.Encoder().encode


class ResponseBuilder:
    """Builds one response from its request and the model's events."""

    def __init__(self, body: ResponseRequest, model: str, offered: McpOffer | None = None) -> None:
        self._body = body
        self._model = model
        self._name = f"resp_{secrets.token_hex(16)}"
        self._created = int(time.time())
        self._output = ResponseOutput(
            read_tools(body.tools).called | called_tools(offered),
            encodes_reasoning=ENCODED_REASONING in (body.include or ()),
        )
        self._tokens: list[GeneratedToken] = []  # whose log-probabilities are not sent yet
        self._status = "in_progress"
        self._completed = 0
        self._error: Object | None = None
        self._usage: Object | None = None

    def take(self, event: RoundEvent) -> list[Object]:
        """Add an event of the model and return the events for the client.

        Raises ServingError if the model failed.
        """
        if isinstance(event, Chunk):
            return self._take_chunk(event)
        if isinstance(event, McpListed):
            return self._output.add_list(event)
        if isinstance(event, McpResult):
            return self._output.add_result(event)
        if isinstance(event, Finished):
            self._usage = _to_usage(event)
        return []

    def end(self, status: str, error: Object | None = None) -> None:
        """End the response as "failed" or "cancelled", with the output until now."""
        if self._output.items:
            self._output.finish("incomplete")  # has no effect on items that are complete
        self._status, self._error = status, error

    def to_object(self) -> OpenAIResponse:
        """Return the response in its present state."""
        body, status = self._body, self._status
        is_cut = status == "incomplete"
        text = msgspec.to_builtins(body.text.format) if body.text and body.text.format else None
        thinking, conversation = body.reasoning, name_of(body)
        return OpenAIResponse(
            id=self._name,
            created_at=self._created,
            background=bool(body.background),
            completed_at=self._completed if status == "completed" else None,
            status=status,
            error=self._error,
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            model=self._model,
            output=self._output.items,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            conversation=None if conversation is None else {"id": conversation},
            reasoning={"effort": thinking.effort if thinking else None, "summary": None},
            store=body.store is not False,
            temperature=body.temperature,
            text={"format": text or {"type": "text"}},
            tool_choice="auto" if body.tool_choice is None else body.tool_choice,
            tools=[_on_single_line(tool) for tool in body.tools or ()],
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
            self._completed = int(time.time())
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


async def collect_response(
    generation: Generation | McpGeneration, builder: ResponseBuilder
) -> OpenAIResponse:
    """Return the complete response of `generation`, which has begun.

    Raises ServingError.
    """
    async for event in generation:
        builder.take(event)
    return builder.to_object()


async def stream_response(
    generation: Generation | McpGeneration,
    builder: ResponseBuilder,
    keep: Callable[[OpenAIResponse], None],
) -> AsyncIterator[bytes]:
    """Iterate over the events of the response of `generation`, which has begun.

    `keep` is called with the response when it is complete.
    """
    numbering = _Numbers()
    for name in ("response.created", "response.in_progress"):
        yield numbering.write({"type": name, "response": builder.to_object()})
    try:
        async for event in generation:
            items = builder.take(event)
            if items:
                yield b"".join([numbering.write(item) for item in items])
        response = builder.to_object()
        keep(response)
    except Exception as error:
        failure = to_failure(error)
        builder.end("failed", {"code": "server_error", "message": failure.text})
        response = builder.to_object()
    yield numbering.write({"type": f"response.{response.status}", "response": response})


class _Numbers:
    """Numbers the events of a stream, from 0."""

    def __init__(self) -> None:
        self._next = 0

    def write(self, event: Object) -> bytes:
        event["sequence_number"] = self._next
        self._next += 1
        return sse.event(_encode(event), event["type"].encode())


def _on_single_line(text: msgspec.Raw) -> msgspec.Raw:
    """Replace line ends in JSON, where they can only be whitespace, as an event is one line."""
    return msgspec.Raw(bytes(text).replace(b"\n", b" ").replace(b"\r", b" "))
