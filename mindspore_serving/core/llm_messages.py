"""Requests to a language model and the events that answer them.  Plain messages, sent as msgpack
between a front end and the worker that has the model; they have no protocol's names.

An `LLMRequest` is the body of a request; the method it is sent to, a key of `METHODS`, gives its
type.  A `Generate` is answered by `Started`, any number of `PromptScored` and `Chunk`, and
`Finished`; or by `Refused` alone.  The others have one answer: their own event or `Refused`.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from mindspore_serving.core.generation import SamplingParams

CODEC = "llm"  # the codec of all of them, see `wire`


class Grammar(msgspec.Struct, frozen=True):
    """What the answer must look like.

    `source` is a JSON schema, a regular expression, a Lark grammar in llguidance's dialect, or ""
    for "json_object", any JSON object.
    """

    kind: Literal["json_object", "json_schema", "regex", "lark"]
    source: str = ""


class Generate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="generate"):
    """Go on behind a prompt, or answer a conversation.

    Just one of `prompt` (text or token ids) and `messages` (mappings with "role" and "content",
    as the model's chat template takes them) is given.

    Args:
        tools, template_options: for the chat template.
        truncate: keep only so many tokens at the end of the prompt.
        add_special: put the tokenizer's special tokens around a prompt that is text.
        is_stream: pieces as they come; else all of an answer in one piece at its end.
        has_tokens: pieces say their tokens, with log-probabilities if `params` asks for them.
        has_prompt_tokens: `Started` has the prompt's tokens.
        must_fit: refuse, with reason "context", if prompt and `max_tokens` are longer than the
            context; else the answer is cut off where the context ends.
        adapter: name of a LoRA adapter, "" for none.
        cache_salt: only requests with the same salt share cached prompts.
        priority: lower runs first.
    """

    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    template_options: dict[str, Any] = {}
    params: SamplingParams = SamplingParams()
    grammar: Grammar | None = None
    truncate: int | None = None
    add_special: bool = True
    is_stream: bool = False
    has_tokens: bool = False
    has_prompt_tokens: bool = False
    must_fit: bool = False
    adapter: str = ""
    cache_salt: str = ""
    priority: int = 0


class Tokenize(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="tokenize"):
    """The tokens of a text, or of a conversation in the chat template."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    template_options: dict[str, Any] = {}
    add_special: bool = True


class Detokenize(msgspec.Struct, frozen=True, kw_only=True, tag="detokenize"):
    """The text of token ids."""

    token_ids: list[int]
    skip_special_tokens: bool = False


class Embed(msgspec.Struct, frozen=True, kw_only=True, tag="embed"):
    """A vector for each prompt; of length 1, unless the model's directory says otherwise."""

    prompts: list[str | list[int]]


LLMRequest: TypeAlias = Generate | Tokenize | Detokenize | Embed

METHODS: dict[str, type[Any]] = {
    "@generate": Generate,
    "@tokenize": Tokenize,
    "@detokenize": Detokenize,
    "@embed": Embed,
}


class Token(msgspec.Struct, frozen=True, array_like=True):
    """A token: `data` are the bytes it stands for, `text` those decoded by themselves.

    `logprob` is None if it was not asked for, or the token follows nothing; never infinite: at
    least -9999.  `top` are the likeliest tokens in its place, best first, without their own `top`.
    """

    id: int
    text: str
    data: bytes
    is_special: bool
    logprob: float | None = None
    top: tuple["Token", ...] = ()


class Started(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The request was taken, `queue_seconds` after it was ready to be computed.  `seed` is what was
    asked for, or drawn."""

    num_prompt_tokens: int
    seed: int
    prompt: tuple[Token, ...] | None = None
    queue_seconds: float = 0.0


class PromptScored(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Log-probabilities of the next tokens of the prompt, if `params.prompt_logprobs` is given."""

    tokens: tuple[Token, ...]


class Chunk(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """More of answer `index` (0 to n-1).

    `text` is what can be shown: never half a character, never the start of a stop string.
    `finish_reason` is None while there is more, else "stop", "length", "abort" or "error";
    `stop_reason` the stop string or token id that ended it, for "error" what went wrong.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[Token, ...] | None = None
    finish_reason: Literal["stop", "length", "abort", "error"] | None = None
    stop_reason: str | int | None = None


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """All answers are finished."""

    num_prompt_tokens: int
    num_cached_tokens: int  # of the prompt, found in the prefix cache
    num_generated_tokens: int  # of all answers
    queue_seconds: float = 0.0  # from when it was ready to be computed to its first step


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The request was not taken; nothing follows.

    "context": the prompt, or with `max_tokens` the answer, does not fit; `num_prompt_tokens`,
    `max_tokens` (0 if not given) and `max_model_len` say how.  "overloaded": too many requests or
    tokens wait.  "template": the chat template refused the messages.  "grammar": it cannot be
    compiled.  "empty": the prompt has no tokens.  "input": anything else that is wrong.
    """

    reason: Literal["context", "overloaded", "template", "grammar", "empty", "input"]
    text: str
    num_prompt_tokens: int = 0
    max_tokens: int = 0
    max_model_len: int = 0


class Tokenized(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """`text` is what was tokenized; `offsets` are (start, stop) of each token in its characters."""

    text: str
    tokens: tuple[Token, ...]
    offsets: tuple[tuple[int, int], ...]


class Detokenized(msgspec.Struct, frozen=True, array_like=True, tag=7):
    text: str


class Embedded(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """`vectors` are float32, little-endian, [number of prompts, `size`]."""

    vectors: bytes
    size: int
    num_prompt_tokens: tuple[int, ...]


Event: TypeAlias = (
    Started | PromptScored | Chunk | Finished | Refused | Tokenized | Detokenized | Embedded
)


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of its language model once it is loaded.

    `tool_format` and `reasoning_format` name rows of `llm.tool_formats` and
    `llm.reasoning_formats`, "" if the chat template shows none.  `sampling` are fields of
    SamplingParams by name, as the model's authors recommend.
    """

    architecture: str
    runtime: str
    dtype: str
    quantization: str
    max_model_len: int
    vocab_size: int
    can_generate: bool
    can_embed: bool
    embedding_size: int
    has_chat_template: bool
    tool_format: str
    reasoning_format: str
    adapters: tuple[str, ...]
    eos_ids: tuple[int, ...]
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_waiting: int | None
    created: int  # seconds since 1970: when it was loaded
    sampling: tuple[tuple[str, int | float], ...] = ()
    summary: str = ""  # one line for people: what was chosen, and what it can hold


_decoders = {name: msgspec.msgpack.Decoder(kind) for name, kind in METHODS.items()}
_events = msgspec.msgpack.Decoder(list[Event])
_encode = msgspec.msgpack.Encoder().encode


def encode_request(request: LLMRequest) -> bytes:
    return _encode(request)


def decode_request(method: str, body: bytes | bytearray | memoryview) -> LLMRequest:
    """Raises msgspec.DecodeError, or InvalidInputs for parameters out of range."""
    request: LLMRequest = _decoders[method].decode(body)
    return request


def encode_events(events: Sequence[Event]) -> bytes:
    return _encode(events)


def decode_events(body: bytes | bytearray | memoryview) -> list[Event]:
    return _events.decode(body)
