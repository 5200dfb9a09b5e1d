"""Types of another server's responses: its numbers, texts and lists are validated here.

After validation every number fits the messages between our processes. Knows no connection.
"""

from typing import Annotated

import msgspec

from mindspore_serving.core.sampling_params import MAX_SEQUENCES

MAX_CALLS = 128  # tool calls of one answer
MAX_COUNT = 2**31 - 1  # tokens, and the largest token id
_MAX_NAME = 1024  # characters

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]
Name = Annotated[str, msgspec.Meta(max_length=_MAX_NAME)]
StopText = Annotated[str, msgspec.Meta(max_length=1 << 16)]
TokenIds = Annotated[list[TokenId], msgspec.Meta(max_length=1 << 16)]


class FunctionDelta(msgspec.Struct):
    """Name and a piece of the arguments of a tool call."""

    name: Name | None = None
    arguments: str | None = None


class CallDelta(msgspec.Struct):
    """A piece of a tool call."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_CALLS)] = 0
    function: FunctionDelta | None = None


class AnswerDelta(msgspec.Struct):
    """A piece of a message of a chat."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[CallDelta], msgspec.Meta(max_length=MAX_CALLS)] | None = None


class Top(msgspec.Struct):
    """A likely token."""

    token: str
    logprob: float
    bytes: Annotated[list[Byte], msgspec.Meta(max_length=4096)] | None = None


class ScoredToken(Top):
    """A generated token, with the likeliest tokens in its place."""

    top_logprobs: Annotated[list[Top], msgspec.Meta(max_length=256)] | None = None


class Logprobs(msgspec.Struct):
    """Log-probabilities: `content` in chats, the parallel lists in completions."""

    content: list[ScoredToken] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class ChoiceDelta(msgspec.Struct):
    """A piece of one answer."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_SEQUENCES)] = 0
    text: str | None = None
    delta: AnswerDelta | None = None
    logprobs: Logprobs | None = None
    token_ids: TokenIds | None = None
    finish_reason: Name | None = None
    stop_reason: StopText | TokenId | None = None


class UpstreamPromptDetails(msgspec.Struct):
    """Details of the prompt's tokens."""

    cached_tokens: Count | None = None


class AnswerDetails(msgspec.Struct):
    """Details of the answer's tokens."""

    reasoning_tokens: Count | None = None


class UpstreamUsage(msgspec.Struct):
    """Token counts of a request."""

    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_tokens_details: UpstreamPromptDetails | None = None
    completion_tokens_details: AnswerDetails | None = None


class EventData(msgspec.Struct):
    """Data of one server-sent event.  `error` is kept as raw JSON."""

    choices: Annotated[list[ChoiceDelta], msgspec.Meta(max_length=MAX_SEQUENCES)] = []
    usage: UpstreamUsage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


decode_event = msgspec.json.Decoder(EventData).decode


class UpstreamListedModel(msgspec.Struct):
    """A model in the list."""

    id: Name
    max_model_len: int | None = None

    @property
    def length(self) -> int:
        """Context length in tokens, at most `MAX_COUNT`; 0 if unknown."""
        return max(0, min(self.max_model_len or 0, MAX_COUNT))


class ModelList(msgspec.Struct):
    """Response to GET /models."""

    data: list[UpstreamListedModel] | None = None


decode_models = msgspec.json.Decoder(ModelList).decode
