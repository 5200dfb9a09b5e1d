"""Conversion of another server's chunks to events.  Knows no connection."""

from collections.abc import Iterator, Sequence
from typing import Any

from mindspore_serving.core.llm_messages import Chunk, Generate, GeneratedToken, ToolCallDelta
from mindspore_serving.llm.upstream.budget import AnswerBudget, InvalidChunk
from mindspore_serving.llm.upstream.response_types import (
    AnswerDelta,
    CallDelta,
    ChoiceDelta,
    EventData,
    FunctionDelta,
    UpstreamUsage,
)

_REASONS = {
    "stop": "stop",
    "eos": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "abort": "abort",
}
UNKNOWN = 0  # stands for a token id that the server does not send
_LOWEST = -9999.0  # log-probability


class AnswerReader:
    """Converts the chunks of the answers to `request`, within `budget`.

    `usage` is the latest that the server sent.
    """

    def __init__(self, request: Generate, budget: AnswerBudget) -> None:
        self.usage = UpstreamUsage()
        self.budget = budget
        self._request = request
        self._open = set(range(request.params.n))
        self._calls: dict[tuple[int, int], str] = {}  # tool names, by answer and call index

    @property
    def is_done(self) -> bool:
        """True if all answers have ended."""
        return not self._open

    def take(self, event: EventData) -> list[Chunk]:
        """Return the chunks with content of an event.  Raises InvalidChunk."""
        self.budget.take_event()
        if event.usage is not None:
            self.usage = event.usage
        chunks = (self._chunk(choice) for choice in event.choices)
        return [chunk for chunk in chunks if _has_content(chunk)]

    def _chunk(self, choice: ChoiceDelta) -> Chunk:
        if choice.index not in self._open:
            raise InvalidChunk(f"it sent a chunk of answer {choice.index}, which is not open")
        delta = choice.delta or AnswerDelta(content=choice.text)
        text, reasoning = delta.content or delta.refusal or "", _reasoning(delta)
        calls = tuple(self._tool_calls(choice.index, delta.tool_calls or ()))
        reason, cause = self._reason(choice)
        if reason is not None:
            self._open.discard(choice.index)
        tokens = _tokens(choice, text or reasoning) if self._request.has_tokens else None
        count = len(tokens) if tokens is not None else int(bool(text or reasoning or calls))
        ids = tuple(choice.token_ids or (UNKNOWN,) * count)
        chunk = Chunk(choice.index, text, ids, tokens, reason, cause, reasoning, calls)
        self.budget.take_chunk(chunk, has_ids=bool(choice.token_ids or choice.logprobs))
        return chunk

    def _reason(self, choice: ChoiceDelta) -> tuple[Any, str | int | None]:
        finish_reason = choice.finish_reason
        if finish_reason is None:
            return None, None
        reason = _REASONS.get(finish_reason)
        if reason is None:
            raise InvalidChunk(f"it sent the unknown finish_reason {finish_reason!r}")
        if reason == "stop" and any(index == choice.index for index, _ in self._calls):
            reason = "tool_calls"
        return reason, choice.stop_reason

    def _tool_calls(self, index: int, deltas: Sequence[CallDelta]) -> Iterator[ToolCallDelta]:
        for delta in deltas:
            key, function = (index, delta.index), delta.function or FunctionDelta()
            if key not in self._calls:
                if not function.name:
                    raise InvalidChunk("it sent a tool call without a name")
                self._calls[key] = function.name
                yield ToolCallDelta(delta.index, function.name)
            if function.arguments:
                yield ToolCallDelta(delta.index, None, function.arguments)


def _reasoning(delta: AnswerDelta) -> str:
    return delta.reasoning_content or delta.reasoning or ""


def _has_content(chunk: Chunk) -> bool:
    parts = (chunk.text, chunk.reasoning, chunk.tool_calls, chunk.tokens, chunk.finish_reason)
    return any(parts)


def _tokens(choice: ChoiceDelta, text: str) -> tuple[GeneratedToken, ...]:
    """Return the tokens of a chunk, with log-probabilities as far as the server sends them.

    Without any, the text is one token.
    """
    logprobs, ids = choice.logprobs, choice.token_ids or []
    rows: list[tuple[str, bytes, float | None, tuple[GeneratedToken, ...]]] = []
    if logprobs is not None and logprobs.content is not None:
        for scored in logprobs.content:
            tops = tuple(
                _top(top.token, top.bytes, top.logprob) for top in scored.top_logprobs or ()
            )
            rows.append((scored.token, _bytes(scored.token, scored.bytes), scored.logprob, tops))
    elif logprobs is not None and logprobs.tokens is not None:
        for index, token in enumerate(logprobs.tokens):
            alternatives = _at(logprobs.top_logprobs, index) or {}
            tops = tuple(_top(name, None, value) for name, value in alternatives.items())
            rows.append((token, token.encode(), _at(logprobs.token_logprobs, index), tops))
    elif text:
        rows.append((text, text.encode(), None, ()))
    return tuple(
        GeneratedToken(_at(ids, index) or UNKNOWN, token, data, False, _finite(logprob), tops)
        for index, (token, data, logprob, tops) in enumerate(rows)
    )


def _finite(logprob: float | None) -> float | None:
    """Clamp a log-probability: some servers send the lowest float for an impossible token."""
    return None if logprob is None else max(logprob, _LOWEST)


def _top(token: str, data: list[int] | None, logprob: float) -> GeneratedToken:
    return GeneratedToken(UNKNOWN, token, _bytes(token, data), False, _finite(logprob))


def _bytes(token: str, data: list[int] | None) -> bytes:
    return token.encode() if data is None else bytes(data)


def _at(values: Sequence[Any] | None, index: int) -> Any:
    return values[index] if values is not None and index < len(values) else None
