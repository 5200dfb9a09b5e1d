"""POST /v1/chat/completions."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import msgspec
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
from mindspore_serving.frontends.openai.chat_stream import ChatChunks, begin_call, stream_chat
from mindspore_serving.frontends.openai.envelope import (
    Head,
    find_generator,
    finish_reason,
    make_head,
    to_usage,
)
from mindspore_serving.frontends.openai.errors import naming
from mindspore_serving.frontends.openai.fields import CHAT
from mindspore_serving.frontends.openai.logprobs import of_chat
from mindspore_serving.frontends.openai.requests import ChatRequest, has_usage
from mindspore_serving.frontends.openai.tools import read_tools
from mindspore_serving.frontends.site import Site
from mindspore_serving.frontends.sse import EventStream
from mindspore_serving.frontends.terms import terms_of


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
            chunks = ChatChunks(head, request.params.n, has_usage=wants_usage)
            return EventStream(Owned(stream_chat(generation, chunks), stack.pop_all()))
        whole = await while_there(http, _collect(generation, head))
    return Response(msgspec.json.encode(whole), media_type="application/json")


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
    """An answer as its chunks come."""

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
            self.calls.append(begin_call(call.name))
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
