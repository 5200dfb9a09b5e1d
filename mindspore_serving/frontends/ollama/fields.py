"""Fields of Ollama's requests and of their options: refused, translated, ignored."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.bodies import in_words
from mindspore_serving.frontends.chat.fields import (
    FieldRefusal,
    Fields,
    show,
    translation,
    unexpected,
)
from mindspore_serving.frontends.chat.tools import find_unread
from mindspore_serving.frontends.decoding import check_free

MAX_LOGPROBS = 20
NO_IMAGES = "is not supported: the model reads no images"


@translation("num_predict", to="max_tokens")
def max_tokens(options: Any, _: ModelCard) -> int | None:
    """Limit the tokens of the answer; unset or negative, to the end of the context."""
    count: int | None = options.num_predict
    return None if count is None or count < 0 else count


@translation("seed")
def seed(options: Any, _: ModelCard) -> int | None:
    """Set the seed; a negative one is random."""
    return None if options.seed is None or options.seed < 0 else options.seed


@translation("stop")
def stop(options: Any, _: ModelCard) -> list[str] | None:
    """Stop at a text, or at any of several."""
    return [options.stop] if isinstance(options.stop, str) else options.stop


@translation("repeat_penalty", "repeat_last_n", to="repetition_penalty")
def repetition_penalty(options: Any, _: ModelCard) -> float | None:
    """Penalize all tokens so far; `repeat_last_n` turns it off with 0 and has no other effect."""
    penalty: float | None = options.repeat_penalty
    return 1.0 if options.repeat_last_n == 0 else penalty


OPTIONS = Fields(
    "ollama",
    refused=(
        FieldRefusal("tfs_z", "is {}, expected 1: use top_p or min_p", lambda value: value != 1),
    ),
    translated=(max_tokens, seed, stop, repetition_penalty),
    ignored=(
        *("embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu"),
        *("num_batch", "num_ctx", "num_gpu", "num_keep", "num_thread", "numa"),
        *("penalize_newline", "use_mlock", "use_mmap", "vocab_only"),
    ),
)


@OPTIONS.extend
class Options(msgspec.Struct, kw_only=True):
    """The `options` of a request; `Fields.extend` adds sampling parameters."""

    stop: str | list[str] | None = None
    repeat_last_n: int | None = None


@translation("think", to="template_options")
def template_options(body: Any, card: ModelCard) -> dict[str, Any]:
    """Set variables of the chat template: `enable_thinking` and `thinking`.

    A text also sets `reasoning_effort`.  Only false is accepted if the model does not reason.  If
    `messages` end with the assistant's, the model continues that message, without thinking.
    """
    think = body.think
    messages = getattr(body, "messages", None)
    if messages and messages[-1].role == "assistant" and not messages[-1].tool_calls:
        off = dict.fromkeys(("enable_thinking", "thinking"), False)
        return {"continue_final_message": True, **off}
    if think is None:
        return {}
    if think is not False and not card.reasoning_format:
        raise InvalidField("think", f"is {show(think)}, but the model does not reason")
    options: dict[str, Any] = dict.fromkeys(("enable_thinking", "thinking"), think is not False)
    return {**options, "reasoning_effort": think} if isinstance(think, str) else options


@translation("format", to="grammar")
def grammar(body: Any, _: ModelCard) -> Grammar | None:
    """Constrain the answer to "json" or to a JSON schema."""
    format_ = body.format
    if not format_ and format_ != {}:
        return None
    if format_ == "json":
        return Grammar("json_object")
    if not isinstance(format_, dict):
        raise unexpected("format", format_, '"json" or a JSON schema')
    check_free("format", format_)
    return Grammar("json_schema", msgspec.json.encode(format_).decode())


@translation("logprobs", "top_logprobs", to="logprobs")
def logprobs(body: Any, _: ModelCard) -> int | None:
    """Return the log-probability of each token and of up to 20 alternatives."""
    count = body.top_logprobs or 0
    if not 0 <= count <= MAX_LOGPROBS:
        raise unexpected("top_logprobs", count, f"0 to {MAX_LOGPROBS}")
    return count if body.logprobs or count else None


@translation("truncate", to="drop_turns")
def drop_turns(body: Any, _: ModelCard) -> bool | None:
    """Drop the oldest turns of a chat that is too long, if true; it is refused by default."""
    value: bool | None = body.truncate
    return value


@translation("truncate")
def truncate(body: Any, card: ModelCard) -> int | None:
    """Keep the end of a raw prompt that is too long, if true; it is refused by default."""
    if body.truncate and not body.raw and card.has_chat_template:
        raise InvalidField("truncate", "is true, expected false: only raw prompts are truncated")
    return card.longest_prompt if body.truncate else None


_BOTH = (template_options, grammar, logprobs)
CHAT = Fields("ollama", translated=(*_BOTH, drop_turns), ignored=("shift",))
GENERATE = Fields(
    "ollama",
    refused=(
        FieldRefusal("template", "is not supported: send the complete prompt, and raw: true"),
        FieldRefusal("context", "is not supported: send the conversation to /api/chat"),
    ),
    translated=(*_BOTH, truncate),
    ignored=CHAT.ignored,
)


@translation("truncate")
def cut_end(body: Any, _: ModelCard) -> str:
    """Truncate the end of a text that is too long; with false it is refused."""
    return "" if body.truncate is False else "right"


EMBED = Fields("ollama", translated=(cut_end,))
CREATE = Fields("ollama", ignored=("license",))


def to_params(
    sent: dict[str, Any] | None, card: ModelCard, defaults: Mapping[str, Any], **overrides: Any
) -> SamplingParams:
    """Return the sampling parameters of `options`, whose numbers may be strings.

    `overrides` replace their values.  Raises InvalidField.
    """
    try:
        options: Any = msgspec.convert(sent or {}, Options, strict=False)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at ")
        name = path.strip("`").replace("$", "options", 1)
        raise InvalidField(name, text=f"{name} is wrong: {in_words(text)}") from None
    try:
        OPTIONS.refuse(options)
        if (options.num_predict or 0) < 0:  # to the end of the context, whatever the default
            overrides = {"max_tokens": None, **overrides}
        return OPTIONS.params(options, card, defaults, **overrides)
    except InvalidField as error:
        raise error.renamed(f"options.{error.field}") from None


def find_ignored(body: Any) -> Iterator[str]:
    """Iterate over the names of fields that are set and have no effect here."""
    if body.keep_alive is not None:
        yield "keep_alive"
    if hasattr(body, "tools"):
        yield from find_unread("/api/chat", body)
    options = body.options or {}
    yield from (f"options.{name}" for name in options if name in OPTIONS.ignored)
