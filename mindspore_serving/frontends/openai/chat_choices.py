"""The choices of a chat: as a whole, or as the chunks of a stream."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from mindspore_serving.core.llm_messages import (
    Chunk,
    Event,
    Finished,
    GeneratedToken,
    ToolCallDelta,
)
from mindspore_serving.frontends.chat.logprobs import of_chat, of_prompt
from mindspore_serving.frontends.chat.models import finish_reason
from mindspore_serving.frontends.openai.answers import AnswerMessage, ChatChoice, ChunkHead
from mindspore_serving.frontends.openai.envelope import DONE, ChunkWriter, encode, to_usage

_ROLE: Mapping[str, object] = {"role": "assistant", "content": "", "refusal": None}


@dataclass(frozen=True, slots=True)
class ChatResponseOptions:
    """What is shown to a client besides the answers.

    `echo` is put before each; `prompt_ids` are those of the prompt, None if no ids are wanted;
    `num_prompt_logprobs` alternatives for each token of the prompt, None if they are not wanted;
    `may_call` if the answer may have calls of tools.
    """

    echo: str = ""
    has_logprobs: bool = False
    prompt_ids: Sequence[int] | None = None
    num_prompt_logprobs: int | None = None
    may_call: bool = False

    def of_prompt(self, tokens: Sequence[GeneratedToken]) -> dict[str, Any]:
        """The fields of the prompt, of which `tokens` have log-probabilities if they are wanted."""
        found: dict[str, Any] = {}
        if self.num_prompt_logprobs is not None and tokens:
            found["prompt_logprobs"] = of_prompt(tokens, self.num_prompt_logprobs)
        if self.prompt_ids is not None:
            found["prompt_token_ids"] = self.prompt_ids
        return found

    def of_answer(self, token_ids: Sequence[int]) -> dict[str, Any]:
        return {} if self.prompt_ids is None else {"token_ids": token_ids}


@dataclass(slots=True)
class WholeChoice:
    """An answer that is shown as a whole."""

    showing: ChatResponseOptions
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[GeneratedToken] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, chunk: Chunk) -> None:
        """Raises ServingError if the model failed."""
        self.content.append(chunk.text)
        self.reasoning.append(chunk.reasoning)
        for call in chunk.tool_calls:
            self._add_call(call)
        self.tokens += chunk.tokens or ()
        self.token_ids += chunk.token_ids
        self.finish_reason = finish_reason(chunk)

    def _add_call(self, call: ToolCallDelta) -> None:
        if call.name is not None:
            self.calls.append(_begin_call(call.name))
        else:
            self.calls[call.index]["function"]["arguments"] += call.arguments

    def to_object(self, index: int) -> ChatChoice:
        showing = self.showing
        content, reasoning = showing.echo + "".join(self.content), "".join(self.reasoning)
        is_empty = not content and (self.calls or reasoning)
        message = AnswerMessage("assistant", None if is_empty else content)
        if reasoning:
            message.reasoning_content = reasoning
        if self.calls:
            message.tool_calls = self.calls
        logprobs = of_chat(self.tokens) if showing.has_logprobs else None
        ids = showing.of_answer(self.token_ids)
        return ChatChoice(index, message, logprobs, self.finish_reason, **ids)


class ChatChunks:
    """Makes the events of `n` choices."""

    def __init__(
        self, head: ChunkHead, n: int, showing: ChatResponseOptions, *, has_usage: bool
    ) -> None:
        self._writer = ChunkWriter(
            replace(head, object="chat.completion.chunk"), has_usage=has_usage
        )
        self._choices = [_StreamedChoice(self._writer, index, showing) for index in range(n)]
        self._done = DONE

    def suit_tgi(self) -> None:
        """For TGI's own client, which wants the role in every event and reads [DONE] as JSON.
        Others, which may call the model so too, would join the roles.
        """
        self._done = b""
        for choice in self._choices:
            choice.role = {"role": "assistant", "tool_calls": None}

    def begin(self) -> bytes:
        """The first event of each choice."""
        return b"".join([choice.begin() for choice in self._choices])

    def take(self, event: Event) -> bytes:
        """What `event` makes, perhaps nothing.  Raises ServingError if the model failed."""
        if isinstance(event, Chunk):
            return self._choices[event.index].take(event)
        if not isinstance(event, Finished):
            return b""
        usage = self._writer.usage(to_usage([event])) if self._writer.has_usage else b""
        return usage + self._done


class _StreamedChoice:
    def __init__(self, writer: ChunkWriter, index: int, showing: ChatResponseOptions) -> None:
        self._writer = writer
        self._showing = showing
        self._index = index
        self._has_role = False  # whether it was sent
        self.role: dict[str, str | None] = {}  # in every event
        self._waiting: list[GeneratedToken] = []  # whose log-probabilities no event has had yet
        self._new_ids: list[int] = []  # the same of ids
        self._before, self._after = writer.frame(
            b'{"index":%d,"delta":{"content":' % index, b'},"logprobs":null,"finish_reason":null}'
        )

    def begin(self) -> bytes:
        """The role, and what the answer goes on with; nothing yet of one that may be calls, in
        which there is no text, not even an empty one.
        """
        echo = self._showing.echo
        if not echo:
            return b"" if self._showing.may_call else self._open("")
        return self._open("") + self._event({"content": echo})

    def _open(self, content: str | None) -> bytes:
        """The event with the role."""
        self._has_role = True
        return self._event({**_ROLE, "content": content}, beside=self._showing.of_prompt(()))

    def take(self, chunk: Chunk) -> bytes:
        is_text = chunk.finish_reason is None and chunk.tokens is None and not self.role
        is_text = is_text and self._has_role
        if is_text and not self._waiting and not chunk.reasoning and not chunk.tool_calls:
            text = chunk.text
            return b"%b%b%b" % (self._before, encode(text), self._after) if text else b""
        if self._showing.has_logprobs:
            self._waiting += chunk.tokens or ()
        self._new_ids += chunk.token_ids
        deltas, made = [*_deltas(chunk)], b""
        if not self._has_role and (deltas or chunk.finish_reason is not None):
            waiting, self._waiting = self._waiting, []
            new_ids, self._new_ids = self._new_ids, []
            made = self._open(None if deltas and "content" not in deltas[0] else "")
            self._waiting, self._new_ids = waiting, new_ids
        made += b"".join([self._event(delta) for delta in deltas])
        if chunk.finish_reason is not None:
            made += self._event({}, finish_reason(chunk))
        return made

    def _event(
        self,
        delta: Mapping[str, object],
        reason: str | None = None,
        beside: Mapping[str, object] | None = None,
    ) -> bytes:
        logprobs = of_chat(self._waiting) if self._waiting else None
        ids = self._showing.of_answer(self._new_ids)
        self._waiting, self._new_ids = [], []
        choice = {"index": self._index, "delta": {**self.role, **delta}, "logprobs": logprobs}
        return self._writer.of_choice(encode({**choice, "finish_reason": reason, **ids}), beside)


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
    return {"index": call.index, **_begin_call(call.name)}


def _begin_call(name: str) -> dict[str, Any]:
    """A call without arguments."""
    return {
        "id": f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": name, "arguments": ""},
    }
