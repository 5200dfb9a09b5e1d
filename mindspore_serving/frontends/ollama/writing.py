"""The answer to a chat or a prompt, as one object or as lines of a stream, with its times."""

import secrets
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import msgspec
from msgspec import UNSET

from mindspore_serving.core.llm_messages import Chunk, Event, Finished, ToolCallDelta
from mindspore_serving.frontends.chat.logprobs import of_chat
from mindspore_serving.frontends.chat.models import Generation, finish_reason
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
    """A part of an answer, or all of it."""

    text: str = ""
    thinking: str = ""
    calls: list[Object] = field(default_factory=list)
    logprobs: list[Object] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.thinking or self.calls or self.logprobs)

    def add(self, other: "OllamaPart") -> None:
        self.text += other.text
        self.thinking += other.thinking
        self.calls += other.calls
        self.logprobs += other.logprobs


class _Calls:
    """Puts the calls of tools together, which have their arguments as an object here."""

    def __init__(self) -> None:
        self._name = ""
        self._arguments: list[str] = []
        self._num_made = 0

    def take(self, delta: ToolCallDelta) -> list[Object]:
        """The call before, where another begins."""
        if delta.name is None:
            self._arguments.append(delta.arguments)
            return []
        found = self.finish()
        self._name = delta.name
        return found

    def finish(self) -> list[Object]:
        """The last call; none that was cut off."""
        name, text = self._name, "".join(self._arguments) or "{}"
        self._name, self._arguments = "", []
        if not name:
            return []
        try:
            arguments = msgspec.json.decode(text, type=Object)
        except (msgspec.MsgspecError, RecursionError):
            return []
        function = {"index": self._num_made, "name": name, "arguments": arguments}
        self._num_made += 1
        return [{"id": f"call_{secrets.token_hex(6)}", "function": function}]


class OllamaWriting:
    """One answer to a request that has just come."""

    def __init__(self, model: str, *, is_chat: bool) -> None:
        self._model = model
        self._is_chat = is_chat
        self._began = time.monotonic_ns()
        self._started = self._first = 0
        self._calls = _Calls()
        self._reason = ""

    def start(self) -> None:
        """The model begins with the prompt."""
        self._started = time.monotonic_ns()

    def take(self, chunk: Chunk) -> OllamaPart:
        """What `chunk` has.  Raises ServingError if the model failed."""
        self._first = self._first or time.monotonic_ns()
        reason = finish_reason(chunk)
        calls = [call for delta in chunk.tool_calls for call in self._calls.take(delta)]
        if reason is not None:
            self._reason = "length" if reason == "length" else "stop"
            calls += self._calls.finish()
        logprobs = of_chat(chunk.tokens)["content"] if chunk.tokens else []
        return OllamaPart(chunk.text, chunk.reasoning, calls, logprobs)

    def end(self, part: OllamaPart, finished: Finished) -> bytes:
        """The last part, or all of it, with counts and times, in nanoseconds.  The model was loaded
        before, and the time of the prompt is up to the first text.
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
        """The line that an event of the model makes, perhaps none."""
        if isinstance(event, Finished):
            return self.end(OllamaPart(), event) + b"\n"
        part = self.take(event) if isinstance(event, Chunk) else OllamaPart()
        return b"" if part.is_empty else self._object(part, done=False) + b"\n"

    def loaded(self) -> bytes:
        """The answer to a request that asks for nothing but that the model is there."""
        return self._object(OllamaPart(), done=True, done_reason="load")

    def _object(self, part: OllamaPart, **fields: Any) -> bytes:
        """The answer to a chat is a message, that to a prompt a text."""
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
    """Seconds since 1970 as clients read them."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


async def write_whole(generation: Generation, writing: OllamaWriting) -> bytes:
    """The answer of `generation`, which has begun, when it is complete.  Raises ServingError."""
    whole, made = OllamaPart(), b""
    async for event in generation:
        if isinstance(event, Chunk):
            whole.add(writing.take(event))
        elif isinstance(event, Finished):
            made = writing.end(whole, event)
    return made
