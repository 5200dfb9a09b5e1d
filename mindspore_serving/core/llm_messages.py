"""Requests to a language model and the events that answer them.  Plain messages, sent as msgpack
between a front end and the worker that has the model; they have no protocol's names.

An `LLMRequest` is the body of a request; the method it is sent to, a key of `METHODS`, gives its
type.  A `Generate` is answered by `Started`, any number of `PromptScored` and `Chunk`, and
`Finished`; or by `Refused` alone.  The others have one answer: their own event or `Refused`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from mindspore_serving.core.reading_messages import (
    DescribeTokenizer,
    Embed,
    Embedded,
    Score,
    Scored,
    TokenizerDescribed,
)
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidInputs, Overloaded, ServingError, printable

CODEC = "llm"  # the codec of all of them, see `wire`

Buffer: TypeAlias = bytes | bytearray | memoryview


class Grammar(msgspec.Struct, frozen=True):
    """What the answer must look like.

    `source` is a JSON schema, a regular expression, a Lark grammar in llguidance's dialect, or ""
    for "json_object", any JSON object.
    """

    kind: Literal["json_object", "json_schema", "regex", "lark"]
    source: str = ""


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which of the tools an answer calls.

    Args:
        mode: "none": the model does not see the tools; "auto": it calls tools or answers in text;
            "required": the answer is calls and nothing else.
        name: the tool that is called if `mode` is "required"; None for any.
        parallel: there may be several calls; else those behind the first are left out.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None
    parallel: bool = True


class Generate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="generate"):
    """Continue a prompt, or answer a conversation.

    Just one of `prompt` (text or token ids) and `messages` (mappings with "role" and "content",
    as the model's chat template takes them) is given.

    Args:
        tools: functions that the model may call, as OpenAI writes them.
        tool_choice: which of them it calls; respected if `parse_output`.
        template_options: variables of the chat template; `add_generation_prompt` and
            `continue_final_message` are what the transformers library has under these names.
        chat_template: in place of the model's own, "" for that; only from who may give one.
        parse_output: chunks have reasoning and calls of tools apart from the text; else all that
            the model writes is text.
        truncate: keep only this many tokens at the end of the prompt.
        drop_turns: leave out the oldest turns of `messages` that do not fit the context.
        add_special: put the tokenizer's special tokens around a prompt that is text.
        is_stream: chunks as they come; else all of an answer at its end.
        has_tokens: chunks have their tokens, with log-probabilities if `params` asks for them.
        has_prompt_tokens: `Started` has the prompt's tokens.
        has_markdown: pictures may be in a prompt that is text, as `![](url)`.
        adapter: name of a LoRA adapter, "" for none.
        cache_salt: only requests with the same salt share cached prompts.
        priority: lower runs first.
    """

    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice = ToolChoice()
    template_options: dict[str, Any] = {}
    chat_template: str = ""
    parse_output: bool = False
    params: SamplingParams = SamplingParams()
    grammar: Grammar | None = None
    truncate: int | None = None
    drop_turns: bool = False
    add_special: bool = True
    is_stream: bool = False
    has_tokens: bool = False
    has_prompt_tokens: bool = False
    has_markdown: bool = False
    adapter: str = ""
    cache_salt: str = ""
    priority: int = 0

    @property
    def markdown(self) -> str:
        """The text that may have pictures; "" if there is none."""
        return self.prompt if self.has_markdown and isinstance(self.prompt, str) else ""


class Tokenize(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="tokenize"):
    """The tokens of a text, or of a conversation in the chat template: those that a `Generate` with
    the same fields has.
    """

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice = ToolChoice()
    template_options: dict[str, Any] = {}
    add_special: bool = True


class Detokenize(msgspec.Struct, frozen=True, kw_only=True, tag="detokenize"):
    """The text of token ids."""

    token_ids: list[int]
    skip_special_tokens: bool = False


LLMRequest: TypeAlias = Generate | Tokenize | Detokenize | Embed | Score | DescribeTokenizer

METHODS: dict[str, type[Any]] = {
    "@generate": Generate,
    "@tokenize": Tokenize,
    "@detokenize": Detokenize,
    "@embed": Embed,
    "@score": Score,
    "@tokenizer": DescribeTokenizer,
}


class GeneratedToken(msgspec.Struct, frozen=True, array_like=True):
    """A token: `data` are the bytes it stands for, `text` those decoded by themselves.

    `logprob` is None if it was not asked for, or the token follows nothing; never infinite: at
    least -9999.  `top` are the likeliest tokens in its place, best first, without their own `top`.
    """

    id: int
    text: str
    data: bytes
    is_special: bool
    logprob: float | None = None
    top: tuple["GeneratedToken", ...] = ()


class Started(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The request was accepted, `queue_seconds` after it was ready to be computed.  `seed` is the
    one that was given, or drawn; `is_capped` if the context has room for fewer tokens of an answer
    than `max_tokens`, which is lowered to that.
    """

    num_prompt_tokens: int
    seed: int
    prompt: tuple[GeneratedToken, ...] | None = None
    queue_seconds: float = 0.0
    is_capped: bool = False


class PromptScored(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Log-probabilities of the next tokens of the prompt, if `params.prompt_logprobs` is given."""

    tokens: tuple[GeneratedToken, ...]


class ToolCallDelta(msgspec.Struct, frozen=True, array_like=True):
    """A part of the `index`-th call of an answer, from 0 on.  The first part of a call has the
    `name` of its tool and nothing else, the others have more of the JSON text of its arguments.
    """

    index: int
    name: str | None = None
    arguments: str = ""


class Chunk(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """More of answer `index` (0 to n-1).

    `text` is what can be shown: never half a character, never the start of a stop string.
    `reasoning`, which is before the text, and `tool_calls`, which are behind it, are filled if
    `parse_output` was given; where the model wrote something in another order there are several
    chunks, the tokens in the first and the finish reason in the last of them.

    `finish_reason` is None while there is more, else "stop", "tool_calls" (a "stop" of an answer
    that has calls), "length", "abort" or "error"; `stop_reason` is the stop string or token id that
    ended it, for "error" what went wrong; `blames_request` if parameters or grammar were the cause.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[GeneratedToken, ...] | None = None
    finish_reason: Literal["stop", "tool_calls", "length", "abort", "error"] | None = None
    stop_reason: str | int | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    blames_request: bool = False

    def to_error(self) -> ServingError:
        """For the finish reason "error"."""
        if self.blames_request:
            return InvalidInputs(f"the answer cannot go on: {self.stop_reason}")
        return ServingError(f"the model failed: {self.stop_reason}")


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """All answers are finished."""

    num_prompt_tokens: int
    num_cached_tokens: int  # of the prompt, found in the prefix cache
    num_generated_tokens: int  # of all answers
    queue_seconds: float = 0.0  # from when it was ready to be computed to its first step
    num_reasoning_tokens: int = 0  # of those generated, if `parse_output` was given
    num_draft_tokens: int = 0  # draft tokens that were verified
    num_accepted_tokens: int = 0  # how many of them were accepted


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The request was not accepted; nothing follows.

    "context": the prompt leaves no room for an answer; `num_prompt_tokens` and `max_model_len` are
    the numbers.  "overloaded": too many
    requests or tokens wait.  "template": the chat template refused the messages.  "grammar": it
    cannot be compiled.  "empty": the prompt has no tokens.  "input": anything else that is wrong.

    `field` is the field of the request, or of its `params`, that is wrong; "" if there is none.
    `retry_after`: the seconds after which an overloaded model may be asked again, if known.
    """

    reason: Literal["context", "overloaded", "template", "grammar", "empty", "input"]
    text: str
    num_prompt_tokens: int = 0
    max_model_len: int = 0
    field: str = ""
    retry_after: float | None = None


class RequestRefused(InvalidInputs):
    """A request that is not accepted; `refused` says why."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.text)
        self.refused = refused


def to_refused(error: ServingError) -> Refused | None:
    """The answer to a request that `error` ended; None if it was accepted, and failed."""
    if isinstance(error, RequestRefused):
        return error.refused
    if isinstance(error, Overloaded):
        return Refused("overloaded", printable(str(error)), retry_after=error.retry_after)
    if isinstance(error, InvalidInputs):
        return Refused("input", printable(str(error)), field=getattr(error, "field", ""))
    return None


class Tokenized(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """`text` is what was tokenized; `offsets` are (start, stop) of each token in its characters."""

    text: str
    tokens: tuple[GeneratedToken, ...]
    offsets: tuple[tuple[int, int], ...]


class Detokenized(msgspec.Struct, frozen=True, array_like=True, tag=7):
    text: str


Event: TypeAlias = (
    Started
    | PromptScored
    | Chunk
    | Finished
    | Refused
    | Tokenized
    | Detokenized
    | Embedded
    | Scored
    | TokenizerDescribed
)


_decoders = {name: msgspec.msgpack.Decoder(kind) for name, kind in METHODS.items()}
_encoder = msgspec.msgpack.Encoder()
encode_request: Callable[[LLMRequest], bytes] = _encoder.encode
encode_events: Callable[[Sequence[Event]], bytes] = _encoder.encode
encode_event: Callable[[Event], bytes] = _encoder.encode
decode_events: Callable[[Buffer], list[Event]] = msgspec.msgpack.Decoder(list[Event]).decode


def decode_request(method: str, body: Buffer) -> LLMRequest:
    """Raises msgspec.DecodeError, or InvalidInputs for parameters out of range."""
    request: LLMRequest = _decoders[method].decode(body)
    return request
