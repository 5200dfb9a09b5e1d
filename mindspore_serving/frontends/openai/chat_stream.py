"""The chunks of a chat's stream."""

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from mindspore_serving.core.llm_messages import Chunk, Finished, Token, ToolCallDelta
from mindspore_serving.frontends.language import Generation
from mindspore_serving.frontends.openai.envelope import (
    DONE,
    ChunkWriter,
    Head,
    encode,
    finish_reason,
    to_usage,
)
from mindspore_serving.frontends.openai.errors import to_failure
from mindspore_serving.frontends.openai.logprobs import of_chat

_ROLE = {"role": "assistant", "content": "", "refusal": None}


async def stream_chat(generation: Generation, chunks: "ChatChunks") -> AsyncIterator[bytes]:
    """The events of the answers of `generation`, which has begun."""
    try:
        yield chunks.begin()
        async for event in generation:
            if isinstance(event, Chunk):
                made = chunks.take(event)
                if made:
                    yield made
            elif isinstance(event, Finished):
                yield chunks.end(event)
    except Exception as error:
        yield to_failure(error).to_event()


class ChatChunks:
    """Makes the events of `n` choices."""

    def __init__(self, head: Head, n: int, *, has_usage: bool) -> None:
        self._writer = ChunkWriter(head, "chat.completion.chunk", has_usage=has_usage)
        self._choices = [_Choice(self._writer, index) for index in range(n)]

    def begin(self) -> bytes:
        """The first event of each choice."""
        return b"".join([choice.begin() for choice in self._choices])

    def take(self, chunk: Chunk) -> bytes:
        """What `chunk` makes, perhaps nothing.  Raises ServingError if the model failed."""
        return self._choices[chunk.index].take(chunk)

    def end(self, finished: Finished) -> bytes:
        usage = self._writer.usage(to_usage([finished])) if self._writer.has_usage else b""
        return usage + DONE


class _Choice:
    def __init__(self, writer: ChunkWriter, index: int) -> None:
        self._writer = writer
        self._index = index
        self._waiting: list[Token] = []  # that no event has had yet
        self._before, self._after = writer.frame(
            b'{"index":%d,"delta":{"content":' % index, b'},"logprobs":null,"finish_reason":null}'
        )

    def begin(self) -> bytes:
        return self._event(_ROLE)

    def take(self, chunk: Chunk) -> bytes:
        is_text = chunk.finish_reason is None and chunk.tokens is None
        if is_text and not self._waiting and not chunk.reasoning and not chunk.tool_calls:
            return (
                b"%b%b%b" % (self._before, encode(chunk.text), self._after) if chunk.text else b""
            )
        self._waiting += chunk.tokens or ()
        made = b"".join([self._event(delta) for delta in _deltas(chunk)])
        if chunk.finish_reason is not None:
            made += self._event({}, finish_reason(chunk))
        return made

    def _event(self, delta: Mapping[str, object], reason: str | None = None) -> bytes:
        logprobs = of_chat(self._waiting) if self._waiting else None
        self._waiting = []
        choice = {
            "index": self._index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reason,
        }
        return self._writer.of_choice(encode(choice))


def _deltas(chunk: Chunk) -> Iterator[dict[str, Any]]:
    if chunk.reasoning:
        yield {"reasoning_content": chunk.reasoning}
    if chunk.text:
        yield {"content": chunk.text}
    for call in chunk.tool_calls:
        yield {"tool_calls": [_call(call)]}


def _call(call: ToolCallDelta) -> dict[str, Any]:
    """Clients add up the strings of events, so id and name of a call are in its first one only."""
    if call.name is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {"index": call.index, **begin_call(call.name)}


def begin_call(name: str) -> dict[str, Any]:
    """A call without arguments."""
    return {
        "id": f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": name, "arguments": ""},
    }
