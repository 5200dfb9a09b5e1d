"""Answers to chats and prompts, as one object or as lines of a stream, with their times."""

import secrets
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import msgspec
from msgspec import UNSET

from mindspore_serving.core.llm_messages import Chunk, Event, Finished
from mindspore_serving.frontends.chat.logprobs import to_chat_logprobs
from mindspore_serving.frontends.chat.models import Generation, finish_reason
from mindspore_serving.frontends.chat.whole_calls import WholeCall, WholeCalls
from mindspore_serving.frontends.ollama.answers import (
    ChatAnswer,
    GenerateAnswer,
    OllamaAnswerMessage,
)

Object = dict[str, Any]

LINES = "application/x-ndjson"
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class OllamaPart:
    """Part of an answer, or all of it."""

    text: str = ""
    thinking: str = ""
    calls: list[Object] = field(default_factory=list)
    logprobs: list[Object] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """True if the part has no content."""
        return not (self.text or self.thinking or self.calls or self.logprobs)

    def add(self, other: "OllamaPart") -> None:
        """Append another part."""
        self.text += other.text
        self.thinking += other.thinking
        self.calls += other.calls
        self.logprobs += other.logprobs


class OllamaAnswerBuilder:
    """Builds the answer to a request that has just arrived."""

    def __init__(self, model: str, *, is_chat: bool) -> None:
        self._model = model
        self._is_chat = is_chat
        self._began = time.monotonic_ns()
        self._started = self._first = 0
        self._calls = WholeCalls()
        self._num_calls = 0
        self._reason = ""

    def start(self) -> None:
        """Record that the model begins with the prompt."""
        self._started = time.monotonic_ns()

    def take(self, chunk: Chunk) -> OllamaPart:
        """Return the part of the answer in `chunk`.

        Raises ServingError if the model failed.
        """
        self._first = self._first or time.monotonic_ns()
        reason = finish_reason(chunk)
        called = [call for delta in chunk.tool_calls for call in self._calls.take(delta)]
        if reason is not None:
            self._reason = "length" if reason == "length" else "stop"
            called += self._calls.finish()
        calls = [self._to_object(call) for call in called if call.arguments is not None]
        logprobs = to_chat_logprobs(chunk.tokens)["content"] if chunk.tokens else []
        return OllamaPart(chunk.text, chunk.reasoning, calls, logprobs)

    def _to_object(self, call: WholeCall) -> Object:
        function = {"index": self._num_calls, "name": call.name, "arguments": call.arguments}
        self._num_calls += 1
        return {"id": f"call_{secrets.token_hex(6)}", "function": function}

    def end(self, part: OllamaPart, finished: Finished) -> bytes:
        """Return the last part, or all of the answer, with counts, and times in nanoseconds.

        The model was loaded before, so `load_duration` is 0; the prompt's time lasts until the
        first text.
        """
        now = time.monotonic_ns()
        return self._object(
            part,
            done=True,
            done_reason=self._reason,
            total_duration=now - self._began,
            load_duration=0,
            prompt_eval_count=finished.num_prompt_tokens,
            prompt_eval_duration=self._first - self._started,
            eval_count=finished.num_generated_tokens,
            eval_duration=now - self._first,
        )

    def line(self, event: Event) -> bytes:
        """Return the line of an event, b"" if the client gets nothing of it."""
        if isinstance(event, Finished):
            return self.end(OllamaPart(), event) + b"\n"
        part = self.take(event) if isinstance(event, Chunk) else OllamaPart()
        return b"" if part.is_empty else self._object(part, done=False) + b"\n"

    def loaded(self) -> bytes:
        """Return the answer to a request that only loads the model."""
        return self._object(OllamaPart(), done=True, done_reason="load")

    def _object(self, part: OllamaPart, **fields: Any) -> bytes:
        """Return an answer: to a chat with a message, to a prompt with a text."""
        created, thinking = to_time(time.time()), part.thinking or UNSET
        fields["logprobs"] = part.logprobs or UNSET
        if self._is_chat:
            message = OllamaAnswerMessage("assistant", part.text, thinking, part.calls or UNSET)
            answer: object = ChatAnswer(
                model=self._model, created_at=created, message=message, **fields
            )
        else:
            answer = GenerateAnswer(
                model=self._model,
                created_at=created,
                response=part.text,
                thinking=thinking,
                **fields,
            )
        return _encode(answer)


def to_time(seconds: float) -> str:
    """Return seconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


async def collect_answer(generation: Generation, builder: OllamaAnswerBuilder) -> bytes:
    """Return the complete answer of `generation`, which has begun.

    Raises ServingError.
    """
    answer, body = OllamaPart(), b""
    async for event in generation:
        if isinstance(event, Chunk):
            answer.add(builder.take(event))
        elif isinstance(event, Finished):
            body = builder.end(answer, event)
    return body
