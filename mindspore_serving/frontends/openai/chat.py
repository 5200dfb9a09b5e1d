"""POST /v1/chat/completions."""

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mindspore_serving.core.llm_messages import (
    Chunk,
    Finished,
    Generate,
    Token,
    ToolCallDelta,
)
from mindspore_serving.frontends.disconnect import Owned, while_there
from mindspore_serving.frontends.language import Generation, ServedModel
from mindspore_serving.frontends.openai import messages
from mindspore_serving.frontends.openai.envelope import (
    DONE,
    ChunkWriter,
    Head,
    encode,
    find_generator,
    finish_reason,
    make_head,
    to_usage,
)
from mindspore_serving.frontends.openai.errors import naming, to_failure
from mindspore_serving.frontends.openai.fields import CHAT
from mindspore_serving.frontends.openai.logprobs import of_chat
from mindspore_serving.frontends.openai.requests import ChatRequest, has_usage
from mindspore_serving.frontends.openai.tools import read_tools
from mindspore_serving.frontends.site import Site
from mindspore_serving.frontends.sse import EventStream
from mindspore_serving.frontends.terms import terms_of

TGI = "tgi"  # what the Python client of TGI calls every model
_ROLE = {"role": "assistant", "content": "", "refusal": None}


async def answer(site: Site, http: Request, body: ChatRequest) -> Response:
    """The answer to a chat: one object, or a stream of chunks."""
    model = find_generator(site.models, body.model)
    wants_usage = has_usage(body)
    request = to_request(body, model)
    head = make_head("chatcmpl", model)
    with ExitStack() as stack:
        with naming("messages", CHAT, body):
            generation = stack.enter_context(model.generate(request, terms_of(http)))
            await while_there(http, generation.begin())
        if body.stream:
            chunks = _ChatChunks(head, request.params.n, has_usage=wants_usage)
            if body.model == TGI and "openai" not in http.headers.get("user-agent", "").lower():
                chunks.suit_tgi()
            return EventStream(Owned(_stream(generation, chunks), stack.pop_all()))
        whole = await while_there(http, _collect(generation, head))
    return Response(encode(whole), media_type="application/json")


def to_request(body: ChatRequest, model: ServedModel) -> Generate:
    """The request to the model.  Raises InvalidField."""
    CHAT.refuse(body)
    parallel = body.parallel_tool_calls is not False
    tools, choice = read_tools(body.tools or (), body.tool_choice, parallel=parallel)
    options = CHAT.options(body, model.card)
    params = CHAT.params(body, model.card, {"max_tokens": None, **dict(model.card.sampling)})
    return Generate(
        messages=messages.to_template(body.messages),
        tools=tools or None,
        tool_choice=choice,
        parse_output=True,
        params=params,
        is_stream=bool(body.stream),
        has_tokens=params.logprobs is not None,
        must_fit=params.max_tokens is not None,
        adapter=model.adapter,
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
        **options,
    )


async def _collect(generation: Generation, head: Head) -> dict[str, Any]:
    choices: dict[int, _Choice] = {}
    finished: list[Finished] = []
    async for event in generation:
        if isinstance(event, Chunk):
            choices.setdefault(event.index, _Choice()).add(event)
        elif isinstance(event, Finished):
            finished.append(event)
    return {
        **head.to_object("chat.completion"),
        "choices": [choices[index].to_object(index) for index in sorted(choices)],
        "usage": to_usage(finished),
    }


@dataclass(slots=True)
class _Choice:
    """An answer that is shown as a whole."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    tokens: tuple[Token, ...] | None = None
    finish_reason: str | None = None

    def add(self, chunk: Chunk) -> None:
        """Raises ServingError if the model failed."""
        self.content.append(chunk.text)
        self.reasoning.append(chunk.reasoning)
        for call in chunk.tool_calls:
            self._add_call(call)
        if chunk.tokens is not None:
            self.tokens = (self.tokens or ()) + chunk.tokens
        self.finish_reason = finish_reason(chunk)

    def _add_call(self, call: ToolCallDelta) -> None:
        if call.name is not None:
            self.calls.append(_begin_call(call.name))
        else:
            self.calls[call.index]["function"]["arguments"] += call.arguments

    def to_object(self, index: int) -> dict[str, Any]:
        content, reasoning = "".join(self.content), "".join(self.reasoning)
        is_empty = not content and (self.calls or reasoning)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if is_empty else content,
            "refusal": None,
        }
        if reasoning:
            message["reasoning_content"] = reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        return {
            "index": index,
            "message": message,
            "logprobs": None if self.tokens is None else of_chat(self.tokens),
            "finish_reason": self.finish_reason,
        }


async def _stream(generation: Generation, chunks: "_ChatChunks") -> AsyncIterator[bytes]:
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


class _ChatChunks:
    """Makes the events of `n` choices."""

    def __init__(self, head: Head, n: int, *, has_usage: bool) -> None:
        self._writer = ChunkWriter(head, "chat.completion.chunk", has_usage=has_usage)
        self._choices = [_StreamedChoice(self._writer, index) for index in range(n)]
        self._done = DONE

    def suit_tgi(self) -> None:
        """For TGI's own client, which wants the role in every event and reads [DONE] as JSON.
        Others, which may call the model so too, would join the roles."""
        self._done = b""
        for choice in self._choices:
            choice.role = {"role": "assistant", "tool_calls": None}

    def begin(self) -> bytes:
        """The first event of each choice."""
        return b"".join([choice.begin() for choice in self._choices])

    def take(self, chunk: Chunk) -> bytes:
        """What `chunk` makes, perhaps nothing.  Raises ServingError if the model failed."""
        return self._choices[chunk.index].take(chunk)

    def end(self, finished: Finished) -> bytes:
        usage = self._writer.usage(to_usage([finished])) if self._writer.has_usage else b""
        return usage + self._done


class _StreamedChoice:
    def __init__(self, writer: ChunkWriter, index: int) -> None:
        self._writer = writer
        self._index = index
        self.role: dict[str, str | None] = {}  # in every event
        self._waiting: list[Token] = []  # that no event has had yet
        self._before, self._after = writer.frame(
            b'{"index":%d,"delta":{"content":' % index, b'},"logprobs":null,"finish_reason":null}'
        )

    def begin(self) -> bytes:
        return self._event(_ROLE)

    def take(self, chunk: Chunk) -> bytes:
        is_text = chunk.finish_reason is None and chunk.tokens is None and not self.role
        if is_text and not self._waiting and not chunk.reasoning and not chunk.tool_calls:
            text = chunk.text
            return b"%b%b%b" % (self._before, encode(text), self._after) if text else b""
        self._waiting += chunk.tokens or ()
        made = b"".join([self._event(delta) for delta in _deltas(chunk)])
        if chunk.finish_reason is not None:
            made += self._event({}, finish_reason(chunk))
        return made

    def _event(self, delta: Mapping[str, object], reason: str | None = None) -> bytes:
        logprobs = of_chat(self._waiting) if self._waiting else None
        self._waiting = []
        delta = {**self.role, **delta}
        choice = {"index": self._index, "delta": delta, "logprobs": logprobs}
        return self._writer.of_choice(encode({**choice, "finish_reason": reason}))


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
