"""Answers of /v1/messages: complete, or as the events of a stream."""

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from mindspore_serving.core.llm_messages import Chunk, Finished
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.frontends import sse
from mindspore_serving.frontends.anthropic.answers import AnthropicAnswer
from mindspore_serving.frontends.anthropic.content import Content
from mindspore_serving.frontends.chat.mcp_rounds import McpGeneration, RoundEvent
from mindspore_serving.frontends.chat.mcp_tools import McpOffer, McpResult
from mindspore_serving.frontends.chat.models import Generation, finish_reason

Object = dict[str, Any]

PING = sse.event(b'{"type": "ping"}', b"ping")
_encode = msgspec.json.Encoder().encode


class AnthropicMessageBuilder:
    """Builds one message from the model's events."""

    def __init__(
        self,
        model: str,
        params: SamplingParams,
        num_prompt_tokens: int,
        offered: McpOffer | None = None,
    ) -> None:
        self._model = model
        self._params = params
        self._name = f"msg_{secrets.token_hex(12)}"
        self._content = Content(offered.tools if offered is not None else {})
        self._last: Chunk | None = None
        self._usage = _usage(num_prompt_tokens, 0, 0)

    def take(self, event: RoundEvent) -> list[Object]:
        """Add an event of the model and return the events for the client.

        Raises ServingError if the model failed.
        """
        if isinstance(event, Chunk):
            reason = finish_reason(event)
            events = self._content.take(event)
            if reason is None:
                return events
            self._last = event
            return [*events, *self._content.finish()]
        if isinstance(event, McpResult):
            return self._content.add_result(event)
        if isinstance(event, Finished):
            self._usage = _finished_usage(event)
            return [
                {"type": "message_delta", "delta": self._stop(), "usage": self._usage},
                {"type": "message_stop"},
            ]
        return []

    def begin(self) -> bytes:
        """Return the first events of a stream."""
        return _write([{"type": "message_start", "message": self.to_object()}]) + PING

    def write(self, event: RoundEvent) -> bytes:
        """Add an event of the model and return the events for the client as bytes."""
        return _write(self.take(event))

    def to_object(self) -> AnthropicAnswer:
        """Return the message in its present state."""
        content = self._content.to_objects()
        return AnthropicAnswer(
            id=self._name, model=self._model, content=content, usage=self._usage, **self._stop()
        )

    def _stop(self) -> Object:
        """Return why the answer ended, and at which of the client's stop texts."""
        last = self._last
        if last is None:
            return {"stop_reason": None, "stop_sequence": None}
        if last.finish_reason == "length":
            return {"stop_reason": self._limit(), "stop_sequence": None}
        if last.finish_reason == "tool_calls":
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if last.stop_reason in self._params.stop:
            return {"stop_reason": "stop_sequence", "stop_sequence": last.stop_reason}
        return {"stop_reason": "end_turn", "stop_sequence": None}

    def _limit(self) -> str:
        is_full = self._usage["output_tokens"] < (self._params.max_tokens or 0)
        return "model_context_window_exceeded" if is_full else "max_tokens"


def _finished_usage(finished: Finished) -> Object:
    usage = _usage(
        finished.num_prompt_tokens, finished.num_cached_tokens, finished.num_generated_tokens
    )
    details = {"thinking_tokens": finished.num_reasoning_tokens}
    return {**usage, "output_tokens_details": details}


def _usage(num_prompt: int, num_cached: int, num_generated: int) -> Object:
    return {
        "input_tokens": num_prompt - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": num_generated,
    }


async def collect_message(
    generation: Generation | McpGeneration, builder: AnthropicMessageBuilder
) -> bytes:
    """Return the complete message of `generation`, which has begun.

    Raises ServingError.
    """
    async for event in generation:
        builder.take(event)
    return _encode(builder.to_object())


def _write(events: Sequence[Object]) -> bytes:
    return b"".join([sse.event(_encode(event), event["type"].encode()) for event in events])
