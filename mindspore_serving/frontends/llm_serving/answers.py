"""Answers of llm-serving.  The order of their fields is that of the original.

Knows no model and no form of streams.
"""

from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
_format = msgspec.json.format


class LlmServingError(msgspec.Struct):
    """An error with a status of HTTP's own: a text, or a list of invalid fields."""

    detail: str | list[dict[str, Any]]


class LlmServingToken(msgspec.Struct, frozen=True, gc=False):
    """A token, which is called special if it has no text."""

    id: int
    logprob: float
    special: bool
    text: str


class LlmServingDetails(msgspec.Struct, frozen=True, gc=False):
    """Numbers of tokens in the answer (`generated_tokens`) and in the prompt (`input_length`)."""

    finish_reason: str
    generated_tokens: int
    seed: int
    input_length: int


class LlmServingChunk(msgspec.Struct, frozen=True, gc=False):
    """A part of a stream: one token, and the likeliest tokens in its place."""

    details: None
    generated_text: str
    tokens: LlmServingToken
    top_tokens: list[LlmServingToken]


class AnswerFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a full answer besides its details."""

    generated_text: str
    finish_reason: str
    generated_tokens: int
    prefill: list[LlmServingToken]
    seed: int
    tokens: list[LlmServingToken]
    top_tokens: list[list[LlmServingToken]]


class LlmServingAnswer(AnswerFields, frozen=True, kw_only=True):
    """A full answer; `details` come last."""

    details: LlmServingDetails | None


class DetailsFirst(AnswerFields, frozen=True):
    """A full answer at the end of a stream; a positional field comes before keyword-only ones."""

    details: LlmServingDetails | None


class EventMessage(msgspec.Struct, frozen=True, gc=False, tag_field="event", tag="message"):
    """An event; its name and `retry` (milliseconds until a client reconnects) are in its JSON."""

    retry: int
    data: str | int | list[LlmServingChunk] | list[DetailsFirst]


class IndexedToken(msgspec.Struct, frozen=True, gc=False):
    """The text of a token, and its index in the answer, from 1."""

    text: str
    index: int


class IndexedChunk(msgspec.Struct, frozen=True, gc=False):
    """A part of a stream of the first release's second form."""

    token: IndexedToken


class GeneratedText(msgspec.Struct, frozen=True, gc=False):
    """The last part of a stream of the first release's second form."""

    generated_text: str


class LlmServingModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model and its limits.

    As in the original, `max_concurrent_requests` is the number of queued requests and
    `max_total_tokens` that of concurrent sequences.
    """

    docker_label: str = ""
    max_batch_total_tokens: int
    max_concurrent_requests: int
    max_input_length: int
    max_total_tokens: int
    model_device_type: str
    model_dtype: str
    model_id: str
    model_pipeline_tag: str = "text-generation"
    version: str


def to_spaced_json(answer: msgspec.Struct) -> bytes:
    """Encode an answer with spaces after colons and commas, as in the original.

    Some clients split it as text.
    """
    return _format(_encode(answer), indent=0)
