"""The fields of Ollama's requests and of their options: which are refused, translated, ignored."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import (
    FieldRefusal,
    Fields,
    show,
    translation,
    unexpected,
)
from mindspore_serving.frontends.chat.unknown_fields import KnownFields
from mindspore_serving.frontends.decoding import check_free

MAX_LOGPROBS = 20
NO_IMAGES = "is not supported: the model reads no images"


@translation("num_predict", to="max_tokens")
def max_tokens(options: Any, _: ModelCard) -> int | None:
    """up to the end of the context if it is not given, or negative"""
    count: int | None = options.num_predict
    return None if count is None or count < 0 else count


@translation("seed")
def seed(options: Any, _: ModelCard) -> int | None:
    """a random one if it is negative"""
    return None if options.seed is None or options.seed < 0 else options.seed


@translation("stop")
def stop(options: Any, _: ModelCard) -> list[str] | None:
    """a text or texts"""
    return [options.stop] if isinstance(options.stop, str) else options.stop


@translation("repeat_penalty", "repeat_last_n", to="repetition_penalty")
def repetition_penalty(options: Any, _: ModelCard) -> float | None:
    """of all tokens so far; none if `repeat_last_n` is 0, whose other values change nothing"""
    penalty: float | None = options.repeat_penalty
    return 1.0 if options.repeat_last_n == 0 else penalty


OPTIONS = Fields(
    "ollama",
    refused=(
        FieldRefusal("mirostat", "is {}, expected 0: there is no Mirostat, give top_p or min_p"),
        FieldRefusal("tfs_z", "is {}, expected 1: give top_p or min_p", lambda value: value != 1),
    ),
    translated=(max_tokens, seed, stop, repetition_penalty),
    ignored=(
        *("embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "mirostat_eta"),
        *("mirostat_tau", "num_batch", "num_ctx", "num_gpu", "num_keep", "num_thread", "numa"),
        *("penalize_newline", "use_mlock", "use_mmap", "vocab_only"),
    ),
)


@OPTIONS.extend
class Options(msgspec.Struct, kw_only=True):
    """The `options` of a request; sampling parameters are added from their table."""

    stop: str | list[str] | None = None
    repeat_last_n: int | None = None


@translation("think", to="template_options")
def template_options(body: Any, card: ModelCard) -> dict[str, Any]:
    """variables of the chat template: true and false set `enable_thinking` and `thinking`, a text
    sets `reasoning_effort`, too; all but false are refused if the model does not reason.
    `messages` that end with the assistant's are gone on with, without thinking
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
    """ "json" or a JSON schema: the model can write nothing else"""
    wanted = body.format
    if not wanted and wanted != {}:
        return None
    if wanted == "json":
        return Grammar("json_object")
    if not isinstance(wanted, dict):
        raise unexpected("format", wanted, '"json" or a JSON schema')
    check_free("format", wanted)
    return Grammar("json_schema", msgspec.json.encode(wanted).decode())


@translation("logprobs", "top_logprobs", to="logprobs")
def logprobs(body: Any, _: ModelCard) -> int | None:
    """of each token, and of so many others, at most 20"""
    count = body.top_logprobs or 0
    if not 0 <= count <= MAX_LOGPROBS:
        raise unexpected("top_logprobs", count, f"0 to {MAX_LOGPROBS}")
    return count if body.logprobs or count else None


@translation("truncate", to="drop_turns")
def drop_turns(body: Any, _: ModelCard) -> bool | None:
    """true: the oldest turns of a conversation that is too long are left out; else it is refused,
    also if the field is not given
    """
    found: bool | None = body.truncate
    return found


@translation("truncate")
def truncate(body: Any, card: ModelCard) -> int | None:
    """true, with `raw`: of a prompt that is too long the end is kept; else it is refused, also if
    the field is not given
    """
    if body.truncate and not body.raw and card.has_chat_template:
        raise InvalidField("truncate", "is true, expected false: only a raw prompt is cut")
    return card.max_model_len - 1 if body.truncate else None


_BOTH = (template_options, grammar, logprobs)
CHAT = Fields("ollama", translated=(*_BOTH, drop_turns), ignored=("shift",))
GENERATE = Fields(
    "ollama",
    refused=(
        FieldRefusal(
            "suffix", "is not supported: the models answer behind the prompt, not inside it"
        ),
        FieldRefusal("template", "is not supported: give the whole prompt, and raw: true"),
        FieldRefusal("context", "is not supported: give the conversation to /api/chat"),
    ),
    translated=(*_BOTH, truncate),
    ignored=CHAT.ignored,
)


@translation("truncate")
def cut_end(body: Any, _: ModelCard) -> str:
    """the end of a text that is too long is cut off; false: it is refused"""
    return "" if body.truncate is False else "right"


EMBED = Fields("ollama", translated=(cut_end,))

_KNOWN = KnownFields("Ollama, options", Options, OPTIONS.ignored)


def to_params(
    given: dict[str, Any] | None, card: ModelCard, defaults: Mapping[str, Any], **others: Any
) -> SamplingParams:
    """The sampling parameters of the options of a request, whose numbers may be texts.  Raises
    InvalidField.
    """
    try:
        options = msgspec.convert(given or {}, Options, strict=False)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at ")
        name = place.strip("`").replace("$", "options", 1)
        raise InvalidField(name, text=f"{name} is wrong: {text}") from None
    try:
        OPTIONS.refuse(options)
        return OPTIONS.params(options, card, defaults, **others)
    except InvalidField as error:
        raise error.renamed(f"options.{error.field}") from None


def find_ignored(body: Any) -> Iterator[str]:
    """The names of fields that are given and change nothing here.  Raises InvalidField for an
    option that is nearly called like another.
    """
    if body.keep_alive is not None:
        yield "keep_alive"
    options = body.options or {}
    unknown = _KNOWN.find_unknown(msgspec.json.encode(options))
    yield from (f"options.{name}" for name in options if name in OPTIONS.ignored)
    yield from (f"options.{name}" for name in unknown)
