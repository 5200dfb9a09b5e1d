"""Answers of generateContent: complete, as events, or as the elements of an array."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET

from mindspore_serving.core.llm_messages import Chunk, Event, Finished, GeneratedToken
from mindspore_serving.frontends import sse
from mindspore_serving.frontends.chat.logprobs import MIN_LOGPROB
from mindspore_serving.frontends.chat.models import Generation, finish_reason
from mindspore_serving.frontends.chat.whole_calls import WholeCall, WholeCalls
from mindspore_serving.frontends.gemini.answers import (
    Candidate,
    GeminiAnswerContent,
    GenerateContentResponse,
    UsageMetadata,
)

Object = dict[str, Any]

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _Answer:
    """A candidate: its parts and tokens since they were last sent, and why it ended."""

    index: int
    shows_thoughts: bool
    parts: list[Object] = field(default_factory=list)
    tokens: list[GeneratedToken] = field(default_factory=list)
    reason: str = ""
    message: str = ""
    calls: WholeCalls = field(default_factory=WholeCalls)

    def take(self, chunk: Chunk) -> None:
        """Add a chunk.  Raises ServingError if the model failed."""
        reason = finish_reason(chunk)
        if chunk.reasoning and self.shows_thoughts:
            self._add({"text": chunk.reasoning, "thought": True})
        if chunk.text:
            self._add({"text": chunk.text})
        self.tokens += chunk.tokens or ()
        calls = [call for delta in chunk.tool_calls for call in self.calls.take(delta)]
        if reason is not None:
            self.reason = "MAX_TOKENS" if reason == "length" else "STOP"
            calls += self.calls.finish()
        for call in calls:
            self._add_call(call)

    def to_candidate(self, *, is_last: bool = True) -> Candidate:
        """Return what was added since the last time; a last part is never without text."""
        parts, tokens = self.parts or [{"text": ""}], self.tokens
        self.parts, self.tokens = [], []
        return Candidate(
            content=GeminiAnswerContent(parts),
            finishReason=self.reason if is_last else UNSET,
            finishMessage=self.message if is_last and self.message else UNSET,
            index=self.index,
            avgLogprobs=_average(tokens) if tokens else UNSET,
            logprobsResult=_logprobs(tokens) if tokens else UNSET,
        )

    def _add(self, part: Object) -> None:
        last = self.parts[-1] if self.parts else {}
        if "text" in last and last.get("thought") == part.get("thought"):
            last["text"] += part["text"]
        else:
            self.parts.append(part)

    def _add_call(self, call: WholeCall) -> None:
        if call.arguments is not None:
            identity = f"call_{secrets.token_hex(6)}"
            called = {"id": identity, "name": call.name, "args": call.arguments}
            self.parts.append({"functionCall": called})
        elif self.reason != "MAX_TOKENS":
            self.reason = "MALFORMED_FUNCTION_CALL"
            self.message = f"the arguments of {call.name} are no JSON object"


class GeminiAnswerBuilder:
    """Builds the answer to a request for `count` candidates."""

    def __init__(self, model: str, num_prompt: int, count: int, *, shows_thoughts: bool) -> None:
        self._model = model
        self._name = secrets.token_urlsafe(16)
        self._answers = [_Answer(index, shows_thoughts) for index in range(count)]
        self._usage = UsageMetadata(promptTokenCount=num_prompt, totalTokenCount=num_prompt)

    def take(self, event: Event) -> None:
        """Add an event of the model.  Raises ServingError if the model failed."""
        if isinstance(event, Chunk):
            self._answers[event.index].take(event)
        elif isinstance(event, Finished):
            self._usage = _to_usage(event)

    def to_object(self) -> bytes:
        """Return the complete answer, or the last part of it."""
        return self._encode([answer.to_candidate() for answer in self._answers])

    def write(self, event: Event) -> bytes:
        """Add an event and return what of the answer is new, b"" if nothing is."""
        self.take(event)
        if isinstance(event, Finished):
            return self.to_object()
        if not isinstance(event, Chunk):
            return b""
        answer = self._answers[event.index]
        # The last parts are sent with the counts of tokens.
        if answer.reason or not answer.parts:
            return b""
        return self._encode([answer.to_candidate(is_last=False)])

    def write_event(self, event: Event) -> bytes:
        """Add an event and return an event of the stream."""
        data = self.write(event)
        return data and sse.event(data)

    def write_element(self, event: Event) -> bytes:
        """Add an event and return elements of an array, which the last one closes."""
        data = self.write(event)
        return data and data + (b"]" if isinstance(event, Finished) else b",\n")

    def _encode(self, candidates: list[Candidate]) -> bytes:
        return _encode(
            GenerateContentResponse(
                candidates=candidates,
                usageMetadata=self._usage,
                modelVersion=self._model,
                responseId=self._name,
            )
        )


async def collect(generation: Generation, builder: GeminiAnswerBuilder) -> bytes:
    """Return the complete answer of `generation`, which has begun.  Raises ServingError."""
    async for event in generation:
        builder.take(event)
    return builder.to_object()


def _to_usage(finished: Finished) -> UsageMetadata:
    thoughts, generated = finished.num_reasoning_tokens, finished.num_generated_tokens
    return UsageMetadata(
        promptTokenCount=finished.num_prompt_tokens,
        cachedContentTokenCount=finished.num_cached_tokens or UNSET,
        candidatesTokenCount=generated - thoughts,
        thoughtsTokenCount=thoughts or UNSET,
        totalTokenCount=finished.num_prompt_tokens + generated,
    )


def _logprobs(tokens: Sequence[GeneratedToken]) -> Object:
    """Return the log-probabilities of tokens and of their alternatives."""
    return {
        "chosenCandidates": [_scored(token) for token in tokens],
        "topCandidates": [{"candidates": [*map(_scored, token.top)]} for token in tokens],
    }


def _average(tokens: Sequence[GeneratedToken]) -> float:
    return sum(_logprob(token) for token in tokens) / len(tokens)


def _scored(token: GeneratedToken) -> Object:
    return {"token": token.text, "tokenId": token.id, "logProbability": _logprob(token)}


def _logprob(token: GeneratedToken) -> float:
    return MIN_LOGPROB if token.logprob is None else token.logprob
