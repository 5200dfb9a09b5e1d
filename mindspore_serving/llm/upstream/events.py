"""The pieces of another server's answer as events.  Knows no connection."""

from collections.abc import Iterator, Sequence
from typing import Any

from mindspore_serving.core.llm_messages import Chunk, Generate, GeneratedToken, ToolCallDelta
from mindspore_serving.llm.upstream.budget import AnswerBudget, WrongPiece
from mindspore_serving.llm.upstream.pieces import (
    AnswerDelta,
    CallDelta,
    ChoicePiece,
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
UNKNOWN = 0  # the id of a token whose id the server does not give
_LOWEST = -9999.0  # log-probability


class AnswerReader:
    """Makes chunks of the pieces of the answers to `request`, within `budget`.  `usage` is the
    newest.
    """

    def __init__(self, request: Generate, budget: AnswerBudget) -> None:
        self.usage = UpstreamUsage()
        self.budget = budget
        self._request = request
        self._open = set(range(request.params.n))
        self._calls: dict[tuple[int, int], str] = {}  # names of tools, by answer and call

    @property
    def is_done(self) -> bool:
        """Whether all answers have ended."""
        return not self._open

    def take(self, piece: EventData) -> list[Chunk]:
        """Raises WrongPiece."""
        self.budget.take_event()
        if piece.usage is not None:
            self.usage = piece.usage
        chunks = (self._chunk(choice) for choice in piece.choices)
        return [chunk for chunk in chunks if _has_content(chunk)]

    def _chunk(self, choice: ChoicePiece) -> Chunk:
        if choice.index not in self._open:
            raise WrongPiece(f"it sent a piece of answer {choice.index}, which is not open")
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

    def _reason(self, choice: ChoicePiece) -> tuple[Any, str | int | None]:
        given = choice.finish_reason
        if given is None:
            return None, None
        reason = _REASONS.get(given)
        if reason is None:
            raise WrongPiece(f"it ended an answer for {given!r}")
        if reason == "stop" and any(index == choice.index for index, _ in self._calls):
            reason = "tool_calls"
        return reason, choice.stop_reason

    def _tool_calls(self, index: int, deltas: Sequence[CallDelta]) -> Iterator[ToolCallDelta]:
        for delta in deltas:
            place, function = (index, delta.index), delta.function or FunctionDelta()
            if place not in self._calls:
                if not function.name:
                    raise WrongPiece("it sent a call of a tool without a name")
                self._calls[place] = function.name
                yield ToolCallDelta(delta.index, function.name)
            if function.arguments:
                yield ToolCallDelta(delta.index, None, function.arguments)


def _reasoning(delta: AnswerDelta) -> str:
    return delta.reasoning_content or delta.reasoning or ""


def _has_content(chunk: Chunk) -> bool:
    parts = (chunk.text, chunk.reasoning, chunk.tool_calls, chunk.tokens, chunk.finish_reason)
    return any(parts)


def _tokens(choice: ChoicePiece, text: str) -> tuple[GeneratedToken, ...]:
    """With log-probabilities as far as they are given; without, the text is one token."""
    found, ids = choice.logprobs, choice.token_ids or []
    rows: list[tuple[str, bytes, float | None, tuple[GeneratedToken, ...]]] = []
    if found is not None and found.content is not None:
        for one in found.content:
            tops = tuple(_top(top.token, top.bytes, top.logprob) for top in one.top_logprobs or ())
            rows.append((one.token, _bytes(one.token, one.bytes), one.logprob, tops))
    elif found is not None and found.tokens is not None:
        for place, token in enumerate(found.tokens):
            given = _at(found.top_logprobs, place) or {}
            tops = tuple(_top(name, None, value) for name, value in given.items())
            rows.append((token, token.encode(), _at(found.token_logprobs, place), tops))
    elif text:
        rows.append((text, text.encode(), None, ()))
    return tuple(
        GeneratedToken(_at(ids, place) or UNKNOWN, token, data, False, _finite(logprob), tops)
        for place, (token, data, logprob, tops) in enumerate(rows)
    )


def _finite(logprob: float | None) -> float | None:
    """Some servers write the lowest number there is for what is impossible."""
    return None if logprob is None else max(logprob, _LOWEST)


def _top(token: str, data: list[int] | None, logprob: float) -> GeneratedToken:
    return GeneratedToken(UNKNOWN, token, _bytes(token, data), False, _finite(logprob))


def _bytes(token: str, data: list[int] | None) -> bytes:
    return token.encode() if data is None else bytes(data)


def _at(values: Sequence[Any] | None, place: int) -> Any:
    return values[place] if values is not None and place < len(values) else None
