"""The object of a response, as a whole or as the events of a stream."""

import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from mindspore_serving.core.llm_messages import Chunk, Event, Finished, Token
from mindspore_serving.frontends import sse
from mindspore_serving.frontends.language import Stream
from mindspore_serving.frontends.openai.envelope import finish_reason
from mindspore_serving.frontends.openai.errors import to_failure
from mindspore_serving.frontends.openai.reading import Reader, Reading
from mindspore_serving.frontends.openai.response_items import Output
from mindspore_serving.frontends.openai.response_requests import ResponseRequest
from mindspore_serving.llm.chat.output_parser import Content, Delta, Reasoning

Object = dict[str, Any]

_encode = msgspec.json.Encoder().encode


class Writing:
    """One response: what is known from the start, and what the model has said so far."""

    def __init__(self, asked: ResponseRequest, model: str, reading: Reading) -> None:
        self._asked = asked
        self._model = model
        self._name = f"resp_{secrets.token_hex(16)}"
        self._created = int(time.time())
        self._output = Output()
        self._reader: Reader | None = None if reading.is_plain else reading.begin()
        self._has_reasoning = False
        self._is_reasoning = True  # until something else was said
        self._num_reasoning = 0
        self._tokens: list[Token] = []  # that no text was told with yet
        self._status = "in_progress"
        self._usage: Object | None = None

    def take(self, event: Event) -> list[Object]:
        """The events of what the model said.  Raises ServingError if it failed."""
        if isinstance(event, Chunk):
            return self._take_piece(event)
        if isinstance(event, Finished):
            self._usage = self._to_usage(event)
        return []

    def to_object(self, error: Object | None = None) -> Object:
        """The response as it is now."""
        asked, status = self._asked, "failed" if error else self._status
        is_cut = status == "incomplete"
        text = msgspec.to_builtins(asked.text.format) if asked.text and asked.text.format else None
        thinking = asked.reasoning
        return {
            "id": self._name,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": self._model,
            "output": self._output.items,
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": thinking.effort if thinking else None, "summary": None},
            "service_tier": "default",
            "store": False,
            "temperature": asked.temperature,
            "text": {"format": text or {"type": "text"}},
            "tool_choice": "auto" if asked.tool_choice is None else asked.tool_choice,
            "tools": asked.tools or [],
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": asked.top_p,
            "truncation": "disabled",
            "usage": self._usage,
            "user": asked.user,
        }

    def _take_piece(self, piece: Chunk) -> list[Object]:
        is_end = piece.finish_reason is not None
        reason = finish_reason(piece)
        self._tokens += piece.tokens or ()
        deltas = self._deltas(piece, is_end=is_end)
        self._count(piece, deltas)
        events: list[Object] = []
        for delta in deltas:
            events += self._output.take(delta, self._tokens)
            self._tokens = []
        if is_end:
            self._status = "incomplete" if reason == "length" else "completed"
            events += self._output.finish(self._status)
        return events

    def _deltas(self, piece: Chunk, *, is_end: bool) -> list[Delta]:
        if self._reader is not None:
            return self._reader.take(piece.text, is_end=is_end)
        return [Content(piece.text)] if piece.text else []

    def _count(self, piece: Chunk, deltas: list[Delta]) -> None:
        """Tokens up to the first that are no reasoning, if there was any."""
        self._has_reasoning = self._has_reasoning or any(isinstance(d, Reasoning) for d in deltas)
        self._is_reasoning = self._is_reasoning and all(isinstance(d, Reasoning) for d in deltas)
        if self._is_reasoning:
            self._num_reasoning += len(piece.token_ids)

    def _to_usage(self, ended: Finished) -> Object:
        num_reasoning = self._num_reasoning if self._has_reasoning else 0
        return {
            "input_tokens": ended.num_prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": ended.num_cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": ended.num_generated_tokens,
            "output_tokens_details": {"reasoning_tokens": num_reasoning},
            "total_tokens": ended.num_prompt_tokens + ended.num_generated_tokens,
        }


async def write_whole(stream: Stream, writing: Writing) -> Object:
    """The response of `stream`, which has begun, when it is complete.  Raises ServingError."""
    async for event in stream:
        writing.take(event)
    return writing.to_object()


async def stream_response(stream: Stream, writing: Writing) -> AsyncIterator[bytes]:
    """The events of the response of `stream`, which has begun."""
    numbers = _Numbers()
    for name in ("response.created", "response.in_progress"):
        yield numbers.write({"type": name, "response": writing.to_object()})
    try:
        async for event in stream:
            made = writing.take(event)
            if made:
                yield b"".join([numbers.write(one) for one in made])
        whole = writing.to_object()
    except Exception as error:
        failure = to_failure(error)
        whole = writing.to_object({"code": "server_error", "message": failure.text})
    yield numbers.write({"type": f"response.{whole['status']}", "response": whole})


class _Numbers:
    """Numbers the events of a stream, from 0 on."""

    def __init__(self) -> None:
        self._next = 0

    def write(self, event: Object) -> bytes:
        event["sequence_number"] = self._next
        self._next += 1
        return sse.event(_encode(event), event["type"].encode())
