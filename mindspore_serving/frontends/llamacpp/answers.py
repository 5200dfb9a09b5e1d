"""Answers of llama.cpp's routes, as one object or as the events of a stream, with their times."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mindspore_serving.core.llm_messages import Chunk, Event, Finished, Started
from mindspore_serving.frontends import sse
from mindspore_serving.frontends.chat.models import finish_reason

_encode = msgspec.json.Encoder().encode


class Timings(msgspec.Struct):
    """Counts of tokens, and times in milliseconds; the prompt's lasts until the first text."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float


class LlamaCppAnswer(msgspec.Struct):
    """Body of an answer, and the last event of a stream."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    truncated: bool
    has_new_line: bool
    stop_type: str
    stopping_word: str
    timings: Timings


@dataclass(slots=True)
class LlamaCppAnswerBuilder:
    """Builds the answer to a request that has just arrived.

    Without `has_answer` it has no text: the prompt was only read.
    """

    model: str
    has_answer: bool = True
    has_tokens: bool = False
    _begun: float = field(default=0.0, init=False)
    _first: float = field(default=0.0, init=False)
    _num_prompt: int = field(default=0, init=False)
    _num_predicted: int = field(default=0, init=False)
    _has_new_line: bool = field(default=False, init=False)
    _last: Chunk | None = field(default=None, init=False)

    def start(self, started: Started) -> None:
        """Record that the model begins with the prompt."""
        self._begun = time.monotonic()
        self._num_prompt = started.num_prompt_tokens

    def take(self, chunk: Chunk) -> tuple[str, list[int]]:
        """Return the text and the tokens of `chunk`.

        Raises ServingError if the model failed.
        """
        self._first = self._first or time.monotonic()
        finish_reason(chunk)
        self._last = chunk
        if not self.has_answer:
            return "", []
        self._num_predicted += len(chunk.token_ids)
        self._has_new_line = self._has_new_line or "\n" in chunk.text
        return chunk.text, [*chunk.token_ids]

    def event(self, event: Event) -> bytes:
        """Return the bytes of an event of a stream, b"" if the client gets nothing of it."""
        if isinstance(event, Finished):
            return sse.event(_encode(self.end(event, "", [])))
        text, ids = self.take(event) if isinstance(event, Chunk) else ("", [])
        if not text:
            return b""
        part = {
            "index": 0,
            "content": text,
            "tokens": ids,
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": self._num_predicted,
            "tokens_evaluated": self._num_prompt,
        }
        return sse.event(_encode(part))

    def end(self, finished: Finished, text: str, ids: list[int]) -> LlamaCppAnswer:
        """Return the complete answer, or the end of a stream without text."""
        reason, word = self._ending()
        return LlamaCppAnswer(
            index=0,
            content=text,
            tokens=ids if self.has_tokens else [],
            id_slot=-1,
            stop=True,
            model=self.model,
            tokens_predicted=self._num_predicted,
            tokens_evaluated=finished.num_prompt_tokens,
            tokens_cached=finished.num_prompt_tokens + self._num_predicted,
            truncated=False,
            has_new_line=self._has_new_line,
            stop_type=reason,
            stopping_word=word,
            timings=self._timings(finished),
        )

    def _ending(self) -> tuple[str, str]:
        """Return why the answer ended, and the stop text."""
        last = self._last
        if last is None or not self.has_answer or last.finish_reason == "length":
            return "limit", ""
        return ("word", last.stop_reason) if isinstance(last.stop_reason, str) else ("eos", "")

    def _timings(self, finished: Finished) -> Timings:
        first = self._first or time.monotonic()
        prompt, predicted = first - self._begun, time.monotonic() - first
        count = finished.num_prompt_tokens - finished.num_cached_tokens
        return Timings(
            finished.num_cached_tokens,
            count,
            1000 * prompt,
            count / max(prompt, 1e-9),
            self._num_predicted,
            1000 * predicted,
            self._num_predicted / max(predicted, 1e-9),
        )


def select(answer: LlamaCppAnswer, paths: Sequence[str]) -> dict[str, Any]:
    """Return the fields of `answer` at `paths`, whose steps are between slashes."""
    fields: Any = msgspec.to_builtins(answer)
    selected = {}
    for path in paths:
        value = fields
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            selected[path] = value
    return selected
