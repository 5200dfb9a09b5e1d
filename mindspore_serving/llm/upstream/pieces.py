"""What another server may send: the border at which its numbers, texts and lists are checked.

Behind it every number fits the messages between our processes.  Knows no connection.
"""

from typing import Annotated

import msgspec

from mindspore_serving.core.sampling_params import MAX_SEQUENCES

MAX_CALLS = 128  # of tools, in one answer
MAX_COUNT = 2**31 - 1  # of tokens, and the largest token id
_MAX_NAME = 1024  # characters

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]
Name = Annotated[str, msgspec.Meta(max_length=_MAX_NAME)]
StopText = Annotated[str, msgspec.Meta(max_length=1 << 16)]
TokenIds = Annotated[list[TokenId], msgspec.Meta(max_length=1 << 16)]


class FunctionDelta(msgspec.Struct):
    name: Name | None = None
    arguments: str | None = None


class CallDelta(msgspec.Struct):
    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_CALLS)] = 0
    function: FunctionDelta | None = None


class AnswerDelta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[CallDelta], msgspec.Meta(max_length=MAX_CALLS)] | None = None


class Top(msgspec.Struct):
    token: str
    logprob: float
    bytes: Annotated[list[Byte], msgspec.Meta(max_length=4096)] | None = None


class ScoredToken(Top):
    top_logprobs: Annotated[list[Top], msgspec.Meta(max_length=256)] | None = None


class Logprobs(msgspec.Struct):
    """`content` is that of chats, the lists beside it that of completions."""

    content: list[ScoredToken] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class ChoicePiece(msgspec.Struct):
    index: Annotated[int, msgspec.Meta(ge=0, lt=MAX_SEQUENCES)] = 0
    text: str | None = None
    delta: AnswerDelta | None = None
    logprobs: Logprobs | None = None
    token_ids: TokenIds | None = None
    finish_reason: Name | None = None
    stop_reason: StopText | TokenId | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: Count | None = None


class AnswerDetails(msgspec.Struct):
    reasoning_tokens: Count | None = None


class UpstreamUsage(msgspec.Struct):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: AnswerDetails | None = None


class EventData(msgspec.Struct):
    """The data of one server-sent event.  `error` is kept as it came."""

    choices: Annotated[list[ChoicePiece], msgspec.Meta(max_length=MAX_SEQUENCES)] = []
    usage: UpstreamUsage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


decode_piece = msgspec.json.Decoder(EventData).decode


class Listed(msgspec.Struct):
    """A model; how many tokens it takes is no more than `MAX_COUNT` in what is made of it."""

    id: Name
    max_model_len: int | None = None

    @property
    def length(self) -> int:
        return max(0, min(self.max_model_len or 0, MAX_COUNT))


class ModelList(msgspec.Struct):
    """The answer to the question which models there are."""

    data: list[Listed] | None = None


decode_models = msgspec.json.Decoder(ModelList).decode
