"""Answers as JSON, with the fields in TGI's order and unset fields left out.

Knows no model.
"""

import msgspec
from msgspec import UNSET, UnsetType

encode = msgspec.json.Encoder().encode


class TgiErrorBody(msgspec.Struct, frozen=True):
    """Body of an error."""

    error: str
    error_type: str


class TokenDetails(msgspec.Struct, frozen=True, gc=False):
    """A generated token."""

    id: int
    text: str
    logprob: float | None
    special: bool


class PrefillToken(msgspec.Struct, frozen=True, gc=False):
    """A token of the prompt; `logprob` is null for the first."""

    id: int
    text: str
    logprob: float | None


class BestOfSequence(msgspec.Struct, frozen=True):
    """Alternative answer to a prompt."""

    generated_text: str
    finish_reason: str
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[TokenDetails]
    top_tokens: list[list[TokenDetails]] | UnsetType = UNSET


class TgiDetails(msgspec.Struct, frozen=True):
    """Tokens of an answer and why it ended."""

    finish_reason: str
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[TokenDetails]
    best_of_sequences: list[BestOfSequence] | UnsetType = UNSET
    top_tokens: list[list[TokenDetails]] | UnsetType = UNSET


class GenerateResponse(msgspec.Struct, frozen=True):
    """Answer of /generate."""

    generated_text: str
    details: TgiDetails | UnsetType = UNSET


class StreamDetails(msgspec.Struct, frozen=True):
    """Details of a streamed answer that has ended."""

    finish_reason: str
    generated_tokens: int
    seed: int | None
    input_length: int


class StreamEvent(msgspec.Struct, frozen=True):
    """A token; the last event has the text, and the details if they were requested."""

    index: int
    token: TokenDetails
    top_tokens: list[TokenDetails] | UnsetType = UNSET
    generated_text: str | None = None
    details: StreamDetails | None = None


class TgiInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The model and the limits."""

    model_id: str
    model_sha: str | None = None
    model_pipeline_tag: str | None
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    validation_workers: int
    max_client_batch_size: int
    router: str
    version: str
    sha: str | None = None
    docker_label: str | None = None


class TgiToken(msgspec.Struct, frozen=True, gc=False):
    """A token and the part [start, stop) of the text that it covers, in characters."""

    id: int
    text: str
    start: int
    stop: int


class ChatTokenizeResponse(msgspec.Struct, frozen=True):
    """Answer of /chat_tokenize."""

    tokenize_response: list[TgiToken]
    templated_text: str
