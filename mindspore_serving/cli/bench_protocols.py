"""Requests of `bench` in each protocol, and readers of their answers.  No I/O.

A reader notes when each chunk of an answer arrived; tokens are counted by the server.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mindspore_serving.cli.bench_prompts import BenchPrompt


class AnswerError(ValueError):
    """Error that the server reported within an answer, or an answer that ended too early."""


@dataclass(slots=True)
class BenchAnswer:
    """Content of an answer; `times` are the arrivals of its chunks in seconds."""

    times: list[float] = field(default_factory=list)
    num_prompt: int = 0
    num_cached: int = 0
    num_generated: int = 0
    error: str = ""
    is_finished: bool = False


# Only the fields that are used: msgspec skips others without creating objects.
class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Token(msgspec.Struct):
    text: str = ""


class _TgiDetails(msgspec.Struct):
    generated_tokens: int = 0
    input_length: int | None = None


class _TgiEvent(msgspec.Struct):
    token: _Token | None = None
    generated_text: str | None = None
    details: _TgiDetails | None = None
    error: str | None = None


class _Instance(msgspec.Struct):
    error_msg: str | None = None


class _Classic(msgspec.Struct):
    instances: list[_Instance | None] | None = None
    error_msg: str | None = None


_to_chunk = msgspec.json.Decoder(_Chunk).decode
_to_tgi_event = msgspec.json.Decoder(_TgiEvent).decode
_to_classic = msgspec.json.Decoder(_Classic).decode
_encode = msgspec.json.Encoder().encode


class StreamReader:
    """Reader of server-sent events; `note` adds an event to `answer`."""

    def __init__(self, note: Callable[[BenchAnswer, bytes, float], None]) -> None:
        self.answer = BenchAnswer()
        self._note = note
        self._incomplete = b""

    def take(self, data: bytes, now: float) -> None:
        lines = (self._incomplete + data if self._incomplete else data).split(b"\n")
        self._incomplete = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._note(self.answer, line[5:].strip(), now)

    def finish(self) -> BenchAnswer:
        """Return the answer.  Raises AnswerError."""
        if self.answer.error:
            raise AnswerError(self.answer.error)
        if not self.answer.is_finished:
            raise AnswerError("the answer ended too early")
        return self.answer


class WholeReader:
    """Reader of a classic reply."""

    def __init__(self) -> None:
        self._body = bytearray()

    def take(self, data: bytes, now: float) -> None:
        self._body += data

    def finish(self) -> BenchAnswer:
        """Return the answer.  Raises AnswerError if an instance failed."""
        reply = _to_classic(self._body)
        if reply.error_msg is not None or reply.instances is None:
            raise AnswerError(reply.error_msg or "no instances")
        for instance in reply.instances:
            if instance is not None and instance.error_msg is not None:
                raise AnswerError(instance.error_msg)
        return BenchAnswer(is_finished=True)


AnyReader = StreamReader | WholeReader


@dataclass(frozen=True, slots=True)
class Dialect:
    """Protocol: path and body of a request, and a reader of its answer."""

    path: str
    to_body: Callable[[BenchPrompt], bytes]
    to_reader: Callable[[], AnyReader]
    is_stream: bool = True


def chat(model: str, *, stop_at_end: bool) -> Dialect:
    """Return the dialect of OpenAI's chat completions."""
    return _openai(
        "/v1/chat/completions",
        model,
        stop_at_end,
        lambda text: {"messages": [{"role": "user", "content": text}]},
    )


def completions(model: str, *, stop_at_end: bool) -> Dialect:
    """Return the dialect of OpenAI's completions."""
    return _openai("/v1/completions", model, stop_at_end, lambda text: {"prompt": text})


def _openai(
    path: str, model: str, stop_at_end: bool, to_input: Callable[[str], dict[str, Any]]
) -> Dialect:
    common: dict[str, Any] = {"model": model, "temperature": 0, "stream": True}
    common["stream_options"] = {"include_usage": True}
    if not stop_at_end:
        common["ignore_eos"] = True

    def to_body(prompt: BenchPrompt) -> bytes:
        return _encode({**common, **to_input(prompt.text), "max_tokens": prompt.max_tokens})

    return Dialect(path, to_body, lambda: StreamReader(_note_chunk))


def tgi() -> Dialect:
    """Return the dialect of TGI's generate_stream, which always stops at an end token."""

    def to_body(prompt: BenchPrompt) -> bytes:
        parameters = {"max_new_tokens": prompt.max_tokens, "details": True}
        return _encode({"inputs": prompt.text, "parameters": parameters})

    return Dialect("/generate_stream", to_body, lambda: StreamReader(_note_tgi_event))


def classic(path: str, body: bytes) -> Dialect:
    """Return the dialect of a method of a servable: each request has the same `body`."""
    return Dialect(path, lambda _: body, WholeReader, is_stream=False)


def _note_chunk(answer: BenchAnswer, data: bytes, now: float) -> None:
    if data == b"[DONE]":
        return
    chunk = _to_chunk(data)
    if chunk.error is not None:
        message = chunk.error.get("message") if isinstance(chunk.error, dict) else None
        answer.error = str(message or chunk.error)
    for choice in chunk.choices:
        delta = choice.delta
        if choice.text or (delta and (delta.content or delta.reasoning_content or delta.reasoning)):
            answer.times.append(now)
        if choice.finish_reason:
            answer.is_finished = True
    if chunk.usage is not None:
        answer.num_prompt = chunk.usage.prompt_tokens
        answer.num_generated = chunk.usage.completion_tokens
        details = chunk.usage.prompt_tokens_details
        answer.num_cached = (details.cached_tokens or 0) if details else 0


def _note_tgi_event(answer: BenchAnswer, data: bytes, now: float) -> None:
    event = _to_tgi_event(data)
    if event.error is not None:
        answer.error = event.error
    if event.token is not None:
        answer.times.append(now)
        answer.num_generated += 1
    if event.generated_text is not None:
        answer.is_finished = True
    if event.details is not None:
        answer.num_prompt = event.details.input_length or 0
