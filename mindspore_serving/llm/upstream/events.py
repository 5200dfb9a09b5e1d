"""The pieces of another server's answer as events.  Knows no connection."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from mindspore_serving.core.llm_messages import Chunk, Generate, Token, ToolCallDelta
from mindspore_serving.errors import ServingError

_MOST_CALLS = 128  # of tools, in one answer
_REASONS = {
    "stop": "stop",
    "eos": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "abort": "abort",
}
UNKNOWN = 0  # the id of a token whose id the server does not give


class CalledFunction(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class CallDelta(msgspec.Struct):
    index: int = 0
    function: CalledFunction | None = None


class Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[CallDelta] | None = None


class Top(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None


class Scored(Top):
    top_logprobs: list[Top] | None = None


class Logprobs(msgspec.Struct):
    """`content` is that of chats, the lists beside it that of completions."""

    content: list[Scored] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: Delta | None = None
    logprobs: Logprobs | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class AnswerDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: AnswerDetails | None = None


class Piece(msgspec.Struct):
    """The data of one server-sent event."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


decode_piece = msgspec.json.Decoder(Piece).decode


class WrongPiece(ServingError):
    """What is no piece of an answer to the request."""


class AnswerReader:
    """Makes chunks of the pieces of the answers to `request`.  `usage` is the newest."""

    def __init__(self, request: Generate) -> None:
        self.usage = Usage()
        self._request = request
        self._open = set(range(request.params.n))
        self._calls: dict[tuple[int, int], str] = {}  # names of tools, by answer and call

    @property
    def is_done(self) -> bool:
        """Whether all answers have ended."""
        return not self._open

    def take(self, piece: Piece) -> list[Chunk]:
        """Raises WrongPiece."""
        if piece.usage is not None:
            self.usage = piece.usage
        chunks = (self._chunk(choice) for choice in piece.choices)
        return [chunk for chunk in chunks if _has_content(chunk)]

    def _chunk(self, choice: Choice) -> Chunk:
        if choice.index not in self._open:
            raise WrongPiece(f"it sent a piece of answer {choice.index}, which is not open")
        delta = choice.delta or Delta(content=choice.text)
        text, reasoning = delta.content or delta.refusal or "", _reasoning(delta)
        calls = tuple(self._tool_calls(choice.index, delta.tool_calls or ()))
        reason, cause = self._reason(choice)
        if reason is not None:
            self._open.discard(choice.index)
        tokens = _tokens(choice, text or reasoning) if self._request.has_tokens else None
        count = len(tokens) if tokens is not None else int(bool(text or reasoning or calls))
        ids = tuple(choice.token_ids or (UNKNOWN,) * count)
        return Chunk(choice.index, text, ids, tokens, reason, cause, reasoning, calls)

    def _reason(self, choice: Choice) -> tuple[Any, str | int | None]:
        given = choice.finish_reason
        if given is None:
            return None, None
        reason = _REASONS.get(given)
        if reason is None:
            return "error", f"the upstream ended it: {given}"
        if reason == "stop" and any(index == choice.index for index, _ in self._calls):
            reason = "tool_calls"
        return reason, choice.stop_reason

    def _tool_calls(self, index: int, deltas: Sequence[CallDelta]) -> Iterator[ToolCallDelta]:
        for delta in deltas:
            place, function = (index, delta.index), delta.function or CalledFunction()
            if not 0 <= delta.index < _MOST_CALLS:
                raise WrongPiece(f"it sent call {delta.index} of a tool")
            if place not in self._calls:
                if not function.name:
                    raise WrongPiece("it sent a call of a tool without a name")
                self._calls[place] = function.name
                yield ToolCallDelta(delta.index, function.name)
            if function.arguments:
                yield ToolCallDelta(delta.index, None, function.arguments)


def _reasoning(delta: Delta) -> str:
    return delta.reasoning_content or delta.reasoning or ""


def _has_content(chunk: Chunk) -> bool:
    parts = (chunk.text, chunk.reasoning, chunk.tool_calls, chunk.tokens, chunk.finish_reason)
    return any(parts)


def _tokens(choice: Choice, text: str) -> tuple[Token, ...]:
    """With log-probabilities as far as they are given; without, the text is one token."""
    found, ids = choice.logprobs, choice.token_ids or []
    rows: list[tuple[str, bytes, float | None, tuple[Token, ...]]] = []
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
        Token(_at(ids, place) or UNKNOWN, token, data, False, logprob, tops)
        for place, (token, data, logprob, tops) in enumerate(rows)
    )


def _top(token: str, data: list[int] | None, logprob: float) -> Token:
    return Token(UNKNOWN, token, _bytes(token, data), False, logprob)


def _bytes(token: str, data: list[int] | None) -> bytes:
    if data is None:
        return token.encode()
    try:
        return bytes(data)
    except ValueError:
        raise WrongPiece("it sent numbers over 255 as bytes of a token") from None


def _at(values: Sequence[Any] | None, place: int) -> Any:
    return values[place] if values is not None and place < len(values) else None
