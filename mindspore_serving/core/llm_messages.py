"""Requests to a language model, and the events that answer them.

Plain messages without names of a protocol, sent as msgpack between a front end and the worker that
has the model. An `LLMRequest` is the body of a request; its method, a key of `METHODS`, tells its
type. A `Generate` is answered by `Started`, any number of `PromptScored` and `Chunk`, and
`Finished`; or by `Refused` alone. Other requests have one answer: their event or `Refused`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from mindspore_serving.core.prefill_messages import BlocksWritten, Prefill
from mindspore_serving.core.reading_messages import (
    DescribeTokenizer,
    Embed,
    Embedded,
    Score,
    Scored,
    TokenizerDescribed,
)
from mindspore_serving.core.roles import PREFILL_METHOD
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.core.speech_messages import (
    Heard,
    Speak,
    SpeechEnded,
    Spoken,
    Transcribe,
    Transcribed,
)
from mindspore_serving.errors import InvalidInputs, Overloaded, ServingError, printable

CODEC = "llm"  # codec of all requests, see `wire`
BACKGROUND = 1 << 31
"""Priority from which on a request runs in the background, where no other request feels it."""

Buffer: TypeAlias = bytes | bytearray | memoryview


class Grammar(msgspec.Struct, frozen=True):
    """Constraint on the text of an answer.

    `source` is a JSON schema, a regular expression, a Lark grammar in llguidance's dialect, a
    grammar in llama.cpp's form (GBNF), the JSON of structural tags (`structures`, `triggers`), or
    "" for "json_object", any JSON object.
    """

    kind: Literal["json_object", "json_schema", "regex", "lark", "gbnf", "structural_tag"]
    source: str = ""


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Choice of the tools that an answer calls.

    Args:
        mode: "none": the model does not see the tools; "auto": it calls tools or answers in text;
            "required": the answer consists of calls.
        name: the tool to call if `mode` is "required"; None for any.
        parallel: several calls are possible; else those after the first are dropped.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None
    parallel: bool = True


class Generate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="generate"):
    """Request to continue a prompt, or to answer a conversation.

    Exactly one of `prompt` (text or token ids) and `messages` (mappings with "role" and "content",
    as for the model's chat template) is set.

    Args:
        tools: functions that the model may call, in OpenAI's form.
        tool_choice: which tools it calls; respected if `parse_output`.
        template_options: variables of the chat template; `add_generation_prompt` and
            `continue_final_message` are those of the transformers library.
        chat_template: replaces the model's template, "" for that; only if clients may send one.
        answer_start: text behind the prompt of `messages`, which the answer continues.
        parse_output: chunks have reasoning and tool calls apart from the text; else all is text.
        suffix: the answer stands between `prompt`, a text, and this text; None for none.
        files: names and texts of other files of the repository, before such a prompt.
        truncate: keep only this many tokens at the end of the prompt.
        drop_turns: drop the oldest turns of `messages` that do not fit into the context.
        add_special: put the tokenizer's special tokens around a prompt that is text.
        source_language: code of the language of the prompt, of models with tokens of languages; ""
            for that of the tokenizer.
        target_language: the same of the answer; "" for that of the model's settings.
        is_stream: send chunks as they are generated; else each answer at its end.
        has_tokens: chunks have their tokens, with log-probabilities if `params` requests them.
        has_prompt_tokens: `Started` has the prompt's tokens.
        has_markdown: a prompt that is text may contain images, as `![](url)`.
        adapter: name of a LoRA adapter, "" for none.
        cache_salt: only requests with the same salt share cached prompts.
        priority: lower runs first.
        tenant: requests of one do not wait for all those of another; "" for no API key.
    """

    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice = ToolChoice()
    template_options: dict[str, Any] = {}
    chat_template: str = ""
    answer_start: str = ""
    parse_output: bool = False
    params: SamplingParams = SamplingParams()
    grammar: Grammar | None = None
    suffix: str | None = None
    files: list[tuple[str, str]] = []
    truncate: int | None = None
    drop_turns: bool = False
    add_special: bool = True
    source_language: str = ""
    target_language: str = ""
    is_stream: bool = False
    has_tokens: bool = False
    has_prompt_tokens: bool = False
    has_markdown: bool = False
    adapter: str = ""
    cache_salt: str = ""
    priority: int = 0
    tenant: str = ""

    @property
    def markdown(self) -> str:
        """Text that may contain images; "" if there is none."""
        return self.prompt if self.has_markdown and isinstance(self.prompt, str) else ""


LANGUAGES = {"src_lang": "source_language", "tgt_lang": "target_language"}
"""Fields of a `Generate` by the names that clients have for them, which are transformers'."""


class Tokenize(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="tokenize"):
    """Request for the tokens of a text, or of a conversation in the chat template.

    They are the tokens of a `Generate` with the same fields.
    """

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice = ToolChoice()
    template_options: dict[str, Any] = {}
    add_special: bool = True


class Detokenize(msgspec.Struct, frozen=True, kw_only=True, tag="detokenize"):
    """Request for the text of token ids."""

    token_ids: list[int]
    skip_special_tokens: bool = False


LLMRequest: TypeAlias = (
    Generate
    | Tokenize
    | Detokenize
    | Embed
    | Score
    | DescribeTokenizer
    | Transcribe
    | Speak
    | Prefill
)

METHODS: dict[str, type[Any]] = {
    "@generate": Generate,
    "@tokenize": Tokenize,
    "@detokenize": Detokenize,
    "@embed": Embed,
    "@score": Score,
    "@tokenizer": DescribeTokenizer,
    "@transcribe": Transcribe,
    PREFILL_METHOD: Prefill,
    "@speak": Speak,
}


class GeneratedToken(msgspec.Struct, frozen=True, array_like=True):
    """Token; `data` are its bytes, `text` these decoded by themselves.

    `logprob` is None if it was not requested, or for the first token of a prompt; it is finite, at
    least -9999. `top` are the likeliest tokens at its position, best first, without their own
    `top`.
    """

    id: int
    text: str
    data: bytes
    is_special: bool
    logprob: float | None = None
    top: tuple["GeneratedToken", ...] = ()


class Started(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Acceptance of a request, `queue_seconds` after it was ready to be computed.

    `seed` is that of the request, or random. `is_capped` tells that the context has room for fewer
    tokens than `max_tokens`, which is lowered.
    """

    num_prompt_tokens: int
    seed: int
    prompt: tuple[GeneratedToken, ...] | None = None
    queue_seconds: float = 0.0
    is_capped: bool = False


class PromptScored(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Log-probabilities of the next tokens of the prompt, if `params.prompt_logprobs` is set."""

    tokens: tuple[GeneratedToken, ...]


class ToolCallDelta(msgspec.Struct, frozen=True, array_like=True):
    """Part of the `index`-th call of an answer, from 0.

    The first part of a call has the `name` of its tool and nothing else, the others have more of
    the JSON text of its arguments.
    """

    index: int
    name: str | None = None
    arguments: str = ""


class Chunk(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Chunk of answer `index` (0 to n-1).

    `text` is complete characters, without a possible beginning of a stop string. With
    `parse_output`, `reasoning` (before the text) and `tool_calls` (after it) are set. If the model
    wrote them in another order there are several chunks: the first has the tokens, the last the
    finish reason.

    `finish_reason` is None until the last chunk, then "stop", "tool_calls" (a "stop" of an answer
    with calls), "length", "abort" or "error". `stop_reason` is the stop string or token id, for
    "error" a message. `blames_request` tells that parameters or grammar were the cause.
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
        """Return the exception for the finish reason "error"."""
        if self.blames_request:
            return InvalidInputs(f"the answer cannot go on: {self.stop_reason}")
        return ServingError(f"the model failed: {self.stop_reason}")


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """End of all answers, with counts of tokens."""

    num_prompt_tokens: int
    num_cached_tokens: int  # tokens of the prompt from the prefix cache
    num_generated_tokens: int  # of all answers
    queue_seconds: float = 0.0  # from when it was ready to be computed to its first step
    num_reasoning_tokens: int = 0  # of the generated tokens, with `parse_output`
    num_draft_tokens: int = 0  # tokens that were guessed and computed
    num_accepted_tokens: int = 0  # how many of them were generated


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Refusal of a request; nothing follows.

    "context": the prompt leaves no room for an answer, with `num_prompt_tokens` and
    `max_model_len`. "overloaded": too many requests or tokens are queued. "template": the chat
    template refused the messages. "grammar": it cannot be compiled. "empty": the prompt has no
    tokens. "input": other errors of the request.

    `field` is the wrong field of the request, or of its `params`; "" if there is none.
    `retry_after` is the time in seconds after which an overloaded model may accept it, if known.
    """

    reason: Literal["context", "overloaded", "template", "grammar", "empty", "input"]
    text: str
    num_prompt_tokens: int = 0
    max_model_len: int = 0
    field: str = ""
    retry_after: float | None = None


class RequestRefused(InvalidInputs):
    """Error for a request that is not accepted; `refused` has the reason."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.text)
        self.refused = refused


def to_refused(error: ServingError) -> Refused | None:
    """Return the refusal for an `error`; None if the request was accepted and then failed."""
    if isinstance(error, RequestRefused):
        return error.refused
    if isinstance(error, Overloaded):
        return Refused("overloaded", printable(str(error)), retry_after=error.retry_after)
    if isinstance(error, InvalidInputs):
        return Refused("input", printable(str(error)), field=getattr(error, "field", ""))
    return None


class Tokenized(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Tokens of `text`; `offsets` are their (start, stop) in its characters."""

    text: str
    tokens: tuple[GeneratedToken, ...]
    offsets: tuple[tuple[int, int], ...]


class Detokenized(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Text of token ids."""

    text: str


Event: TypeAlias = (
    Started
    | BlocksWritten
    | PromptScored
    | Chunk
    | Finished
    | Refused
    | Tokenized
    | Detokenized
    | Embedded
    | Scored
    | TokenizerDescribed
    | Heard
    | Transcribed
    | Spoken
    | SpeechEnded
)


_decoders = {name: msgspec.msgpack.Decoder(kind) for name, kind in METHODS.items()}
_encoder = msgspec.msgpack.Encoder()
encode_request: Callable[[LLMRequest], bytes] = _encoder.encode
encode_events: Callable[[Sequence[Event]], bytes] = _encoder.encode
encode_event: Callable[[Event], bytes] = _encoder.encode
decode_events: Callable[[Buffer], list[Event]] = msgspec.msgpack.Decoder(list[Event]).decode


def decode_request(method: str, body: Buffer) -> LLMRequest:
    """Decode a request.

    Raises msgspec.DecodeError, or InvalidInputs for parameters out of range.
    """
    request: LLMRequest = _decoders[method].decode(body)
    return request
