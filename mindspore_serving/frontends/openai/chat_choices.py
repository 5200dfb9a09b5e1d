"""Choices of a chat: complete, or as the chunks of a stream."""

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
from mindspore_serving.frontends.chat.custom_tools import InputReader
from mindspore_serving.frontends.chat.logprobs import to_chat_logprobs, to_prompt_logprobs
from mindspore_serving.frontends.chat.models import finish_reason
from mindspore_serving.frontends.openai.answers import AnswerMessage, ChatChoice, ChunkHead
from mindspore_serving.frontends.openai.envelope import DONE, ChunkWriter, encode, to_usage

_ROLE: Mapping[str, object] = {"role": "assistant", "content": "", "refusal": None}


@dataclass(frozen=True, slots=True)
class ChatResponseOptions:
    """Parts of an answer that the client may add to its text.

    `echo` is put before each answer.  `prompt_ids` are the prompt's token ids, None if the client
    wants no token ids.  `num_prompt_logprobs` is the number of alternatives for each token of the
    prompt, None for no log-probabilities.  `may_call` says whether the answer may have tool calls,
    `custom` names the custom tools.
    """

    echo: str = ""
    has_logprobs: bool = False
    prompt_ids: Sequence[int] | None = None
    num_prompt_logprobs: int | None = None
    may_call: bool = False
    custom: frozenset[str] = frozenset()

    def of_prompt(self, tokens: Sequence[GeneratedToken]) -> dict[str, Any]:
        """Return the fields about the prompt; `tokens` have the requested log-probabilities."""
        fields: dict[str, Any] = {}
        if self.num_prompt_logprobs is not None and tokens:
            fields["prompt_logprobs"] = to_prompt_logprobs(tokens, self.num_prompt_logprobs)
        if self.prompt_ids is not None:
            fields["prompt_token_ids"] = self.prompt_ids
        return fields

    def of_answer(self, token_ids: Sequence[int]) -> dict[str, Any]:
        return {} if self.prompt_ids is None else {"token_ids": token_ids}


@dataclass(slots=True)
class CompleteChoice:
    """Collects the chunks of a choice that is not streamed."""

    options: ChatResponseOptions
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[GeneratedToken] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, chunk: Chunk) -> None:
        """Append a chunk.

        Raises ServingError if the model failed.
        """
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

    def _to_call(self, call: dict[str, Any]) -> dict[str, Any]:
        """Return a call in the form of its tool."""
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if name not in self.options.custom:
            return call
        reader = InputReader()
        text = reader.feed(arguments) + reader.finish()
        return {"id": call["id"], "type": "custom", "custom": {"name": name, "input": text}}

    def to_object(self, index: int) -> ChatChoice:
        """Return the choice; content is null beside calls or reasoning if there is no text."""
        options = self.options
        content, reasoning = options.echo + "".join(self.content), "".join(self.reasoning)
        is_empty = not content and (self.calls or reasoning)
        message = AnswerMessage("assistant", None if is_empty else content)
        if reasoning:
            message.reasoning_content = reasoning
        if self.calls:
            message.tool_calls = [*map(self._to_call, self.calls)]
        logprobs = to_chat_logprobs(self.tokens) if options.has_logprobs else None
        ids = options.of_answer(self.token_ids)
        return ChatChoice(index, message, logprobs, self.finish_reason, **ids)


class ChatChunks:
    """Writes the events of `n` streamed choices."""

    def __init__(
        self, head: ChunkHead, n: int, options: ChatResponseOptions, *, has_usage: bool
    ) -> None:
        self._writer = ChunkWriter(
            replace(head, object="chat.completion.chunk"), has_usage=has_usage
        )
        self._choices = [_StreamedChoice(self._writer, index, options) for index in range(n)]
        self._done = DONE

    def adapt_to_tgi(self) -> None:
        """Write as TGI's own client expects: the role in every event, and no [DONE].

        It reads [DONE] as JSON. Other clients, which may also name the model "tgi", would
        concatenate the roles.
        """
        self._done = b""
        for choice in self._choices:
            choice.role = {"role": "assistant", "tool_calls": None}

    def begin(self) -> bytes:
        """Return the first event of each choice."""
        return b"".join([choice.begin() for choice in self._choices])

    def take(self, event: Event) -> bytes:
        """Return the bytes of `event`, b"" if the client gets nothing of it.

        Raises ServingError if the model failed.
        """
        if isinstance(event, Chunk):
            return self._choices[event.index].take(event)
        if not isinstance(event, Finished):
            return b""
        usage = self._writer.usage(to_usage([event])) if self._writer.has_usage else b""
        return usage + self._done


class _StreamedChoice:
    def __init__(self, writer: ChunkWriter, index: int, options: ChatResponseOptions) -> None:
        self._writer = writer
        self._options = options
        self._index = index
        self._has_role = False  # whether it was sent
        self.role: dict[str, str | None] = {}  # repeated in every event
        self._readers: dict[int, InputReader] = {}  # of calls of custom tools, by their index
        self._waiting: list[GeneratedToken] = []  # whose log-probabilities are not sent yet
        self._new_ids: list[int] = []  # token ids that are not sent yet
        self._before, self._after = writer.frame(
            b'{"index":%d,"delta":{"content":' % index, b'},"logprobs":null,"finish_reason":null}'
        )

    def begin(self) -> bytes:
        """Return the event with the role, and one with the echo.

        Return b"" if the answer may be tool calls: their first event has no content, not even an
        empty string, so the role waits for the first chunk.
        """
        echo = self._options.echo
        if not echo:
            return b"" if self._options.may_call else self._open("")
        return self._open("") + self._event({"content": echo})

    def _open(self, content: str | None) -> bytes:
        """Return the event with the role."""
        self._has_role = True
        return self._event({**_ROLE, "content": content}, beside=self._options.of_prompt(()))

    def take(self, chunk: Chunk) -> bytes:
        """Return the events of a chunk: one for each delta, and the last with the finish reason."""
        is_text = chunk.finish_reason is None and chunk.tokens is None and not self.role
        is_text = is_text and self._has_role
        # The common chunk, plain text: written around a prepared frame, without building a dict.
        if is_text and not self._waiting and not chunk.reasoning and not chunk.tool_calls:
            text = chunk.text
            return b"%b%b%b" % (self._before, encode(text), self._after) if text else b""
        if self._options.has_logprobs:
            self._waiting += chunk.tokens or ()
        self._new_ids += chunk.token_ids
        deltas, data = [*self._deltas(chunk)], b""
        if not self._has_role and (deltas or chunk.finish_reason is not None):
            # Log-probabilities and ids go with the content, not with the role's event.
            waiting, self._waiting = self._waiting, []
            new_ids, self._new_ids = self._new_ids, []
            data = self._open(None if deltas and "content" not in deltas[0] else "")
            self._waiting, self._new_ids = waiting, new_ids
        data += b"".join([self._event(delta) for delta in deltas])
        if chunk.finish_reason is not None:
            data += self._event({}, finish_reason(chunk))
        return data

    def _event(
        self,
        delta: Mapping[str, object],
        reason: str | None = None,
        beside: Mapping[str, object] | None = None,
    ) -> bytes:
        logprobs = to_chat_logprobs(self._waiting) if self._waiting else None
        ids = self._options.of_answer(self._new_ids)
        self._waiting, self._new_ids = [], []
        choice = {"index": self._index, "delta": {**self.role, **delta}, "logprobs": logprobs}
        return self._writer.of_choice(encode({**choice, "finish_reason": reason, **ids}), beside)

    def _deltas(self, chunk: Chunk) -> Iterator[dict[str, Any]]:
        if chunk.reasoning:
            yield {"reasoning_content": chunk.reasoning}
        if chunk.text:
            yield {"content": chunk.text}
        for call in chunk.tool_calls:
            if call.name in self._options.custom or call.index in self._readers:
                yield from self._custom_deltas(call)
            else:
                yield {"tool_calls": [_call(call)]}
        if chunk.finish_reason is not None:
            for index, reader in self._readers.items():
                yield from _input_delta(index, reader.finish())

    def _custom_deltas(self, call: ToolCallDelta) -> Iterator[dict[str, Any]]:
        """Iterate over the deltas of a call of a custom tool."""
        if call.name is None:
            yield from _input_delta(call.index, self._readers[call.index].feed(call.arguments))
            return
        self._readers[call.index] = InputReader()
        begun = {"id": _call_id(), "type": "custom", "custom": {"name": call.name, "input": ""}}
        yield {"tool_calls": [{"index": call.index, **begun}]}


def _input_delta(index: int, text: str) -> Iterator[dict[str, Any]]:
    if text:
        yield {"tool_calls": [{"index": index, "custom": {"input": text}}]}


def _call(call: ToolCallDelta) -> dict[str, Any]:
    """Return the delta of a call.

    Clients concatenate the strings of deltas, so only the first one of a call has its id and name.
    """
    if call.name is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {"index": call.index, **_begin_call(call.name)}


def _begin_call(name: str) -> dict[str, Any]:
    """Return a call with empty arguments."""
    return {
        "id": _call_id(),
        "type": "function",
        "function": {"name": name, "arguments": ""},
    }


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
