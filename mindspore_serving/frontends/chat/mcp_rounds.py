"""A generation that calls tools of MCP servers: rounds of a model and of its calls.

A round ends with calls.  If all of them are tools of MCP servers, the next round reads their
results; else the client runs the others.  Knows no protocol.
"""

import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import msgspec

from mindspore_serving.core.llm_messages import (
    Chunk,
    Event,
    Finished,
    Generate,
    Started,
    ToolChoice,
)
from mindspore_serving.frontends.chat.mcp_tools import McpListed, McpOffer, McpResult
from mindspore_serving.frontends.chat.messages import CalledFunction, to_arguments
from mindspore_serving.frontends.chat.models import Generation, ServedModel
from mindspore_serving.frontends.request_options import RequestOptions

RoundEvent: TypeAlias = Event | McpListed | McpResult


@dataclass(slots=True)
class _Round:
    """Output of the model in a round."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[tuple[str, list[str]]] = field(default_factory=list)  # function, arguments

    def take(self, chunk: Chunk) -> None:
        self.text.append(chunk.text)
        self.reasoning.append(chunk.reasoning)
        for call in chunk.tool_calls:
            if call.name is not None:
                self.calls.append((call.name, []))
            else:
                self.calls[-1][1].append(call.arguments)

    def to_messages(self, results: Sequence[McpResult]) -> list[dict[str, Any]]:
        """Return the round and its results, for the chat template."""
        calls, answers = [], []
        for (name, parts), result in zip(self.calls, results, strict=True):
            called = CalledFunction(name, "".join(parts))
            function = {"name": name, "arguments": to_arguments("arguments", called)}
            call_id = f"call_{secrets.token_hex(12)}"
            calls.append({"type": "function", "function": function, "id": call_id})
            text = f"Error: {result.text}" if result.has_failed else result.text
            answers.append({"role": "tool", "content": text, "tool_call_id": call_id, "name": name})
        first: dict[str, Any] = {"role": "assistant", "content": "".join(self.text)}
        if any(self.reasoning):
            first["reasoning_content"] = "".join(self.reasoning)
        return [{**first, "tool_calls": calls}, *answers]


class McpGeneration:
    """The events of one `Generate` with tools of MCP servers: used as a `Generation`.

    Leaving it cancels the model and the calls that run.
    """

    def __init__(
        self, model: ServedModel, request: Generate, options: RequestOptions, offered: McpOffer
    ) -> None:
        self._model = model
        self._request = request
        self._options = options
        self._offered = offered
        self._generation = model.generate(request, options)

    async def begin(self) -> Started:
        """Return the first event, as `Generation.begin` does."""
        return await self._generation.begin()

    async def __aiter__(self) -> AsyncIterator[RoundEvent]:
        """Iterate over the events; one `Finished`, of all rounds, is the last.

        Raises ServingError.
        """
        for listed in self._offered.listed:
            yield listed
        finished: list[Finished] = []
        while True:
            written, last = _Round(), None
            async for event in self._generation:
                if isinstance(event, Finished):
                    finished.append(event)
                    continue
                if isinstance(event, Chunk):
                    written.take(event)
                    if event.finish_reason == "tool_calls" and self._mcp_calls(written):
                        last = event
                        event = msgspec.structs.replace(event, finish_reason=None)
                yield event
            calls = self._mcp_calls(written) if last is not None else []
            results = await self._offered.call_all(calls) if calls else []
            for result in results:
                yield result
            is_mixed = len(calls) < len(written.calls)
            if last is None or is_mixed or not self._has_room(finished):
                if last is not None:
                    yield Chunk(0, "", (), finish_reason="tool_calls" if is_mixed else "length")
                yield _sum(finished)
                return
            await self._continue(written.to_messages(results), finished[-1])

    def cancel(self) -> None:
        """Cancel the model's request."""
        self._generation.cancel()

    def __enter__(self) -> "McpGeneration":
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()

    def _mcp_calls(self, written: _Round) -> list[tuple[str, str]]:
        """Return functions and arguments of the calls of MCP servers' tools."""
        tools = self._offered.tools
        return [(name, "".join(parts)) for name, parts in written.calls if name in tools]

    def _has_room(self, finished: Sequence[Finished]) -> bool:
        limit = self._request.params.max_tokens
        return limit is None or limit > finished[-1].num_generated_tokens

    async def _continue(self, messages: Sequence[dict[str, Any]], finished: Finished) -> None:
        """Begin the next round; without tools once no call is left."""
        request, params = self._request, self._request.params
        if params.max_tokens is not None:
            left = params.max_tokens - finished.num_generated_tokens
            params = replace(params, max_tokens=left)
        parallel = request.tool_choice.parallel
        mode: Literal["auto", "none"] = "auto" if self._offered.num_left > 0 else "none"
        self._request = msgspec.structs.replace(
            request,
            messages=[*(request.messages or ()), *messages],
            params=params,
            tool_choice=ToolChoice(mode=mode, parallel=parallel),
        )
        self._generation = self._model.generate(self._request, self._options)
        await self._generation.begin()


def begin_generation(
    model: ServedModel, request: Generate, options: RequestOptions, offered: McpOffer | None
) -> Generation | McpGeneration:
    """Start a generation, of several rounds if tools of MCP servers are offered."""
    if offered is None:
        return model.generate(request, options)
    return McpGeneration(model, request, options, offered)


def _sum(finished: Sequence[Finished]) -> Finished:
    rows = [msgspec.structs.astuple(each) for each in finished]
    return Finished(*(sum(column) for column in zip(*rows, strict=True)))
