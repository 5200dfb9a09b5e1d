"""Sampling of requests that leave parameters out: the operator's, the model's, or the server's.

Pure data: knows no file, no protocol and no engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.sampling_params import SAMPLING, fill_in
from mindspore_serving.errors import StartError

RECOMMENDED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Parameters that a model may recommend and an operator may set."""
SEARCHED = (
    "num_beams", "length_penalty", "early_stopping", "no_repeat_ngram_size", "min_tokens",
    "max_tokens",
)  # fmt: skip
"""Parameters that a model with an encoder may recommend."""
OPTION = "default_{}"
"""Name of the operator's option for a parameter."""
SERVER_SAMPLING: Mapping[str, int | float] = {
    "temperature": 0.7,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
}
"""Sampling of models that recommend none, measured by benchmarks/sampling_defaults.py."""
CHAT_TOKENS, REASONING_TOKENS = 1024, 8192
_OFF = {name: SAMPLING[name].default for name in RECOMMENDED}
_CHANGED = RECOMMENDED[1:]  # by a temperature over 0
_CUTS = ("top_k", "min_p")  # that OpenAI's API does not have
_ORIGINS = {
    "model": "recommended by the model",
    "server": "defaults of the server: the model recommends none",
    "operator": "set by the operator",
}


@dataclass(frozen=True, slots=True)
class DefaultSampling:
    """All parameters of `RECOMMENDED`, and their source: "model", "server" or "operator".

    `cuts` are those that only the server has chosen and that OpenAI's API does not have.
    `max_tokens` is the model's limit of answers, None for no limit.
    """

    values: dict[str, Any]
    source: str
    cuts: tuple[str, ...] = ()
    max_tokens: int | None = None


def choose_sampling(
    recommended: Mapping[str, Any], operator: Mapping[str, Any], max_beams: int = 1
) -> DefaultSampling:
    """Return the sampling of requests that leave it out.

    A model that recommends anything about drawing gets nothing of the server, as files leave out
    what is neutral. Each value of the `operator` replaces the one below it. There are up to
    `max_beams` beams.  Raises StartError if the operator has more.
    """
    is_model = any(name in recommended for name in SERVER_SAMPLING)
    below = {**_OFF, **({} if is_model else SERVER_SAMPLING), **recommended}
    source = "operator" if operator else "model" if is_model else "server"
    cuts = () if is_model else tuple(name for name in _CUTS if name not in operator)
    if operator.get("num_beams", 1) > max_beams:
        why = "which run together" if max_beams > 1 else "as the model has no encoder"
        problem = f"is {operator['num_beams']}, expected at most {max_beams}, {why}"
        raise StartError(f"default_num_beams {problem}")
    values = fill_in(below, operator)
    max_tokens = values.pop("max_tokens", None)
    if "num_beams" in values:
        values["num_beams"] = min(values["num_beams"], max_beams)
    return DefaultSampling(values, source, cuts, max_tokens)


def operator_sampling(config: object) -> dict[str, Any]:
    """Return the parameters that options of `config` set."""
    values = {name: getattr(config, OPTION.format(name)) for name in (*RECOMMENDED, "num_beams")}
    return {name: value for name, value in values.items() if value is not None}


def sampling_fields(
    recommended: Mapping[str, Any], config: Any, max_beams: int = 1
) -> dict[str, Any]:
    """Return the fields of a model's card for requests that leave out sampling parameters.

    `config` has the options of the operator.  Raises StartError as `choose_sampling` does.
    """
    chosen = choose_sampling(recommended, operator_sampling(config), max_beams)
    return {
        "sampling": tuple(chosen.values.items()),
        "sampling_source": chosen.source,
        "sampling_cuts": chosen.cuts,
        "default_max_tokens": config.default_max_tokens or chosen.max_tokens,
        "thinking_token_budget": config.default_thinking_token_budget,
    }


def suggest_max_tokens(card: ModelCard) -> int:
    """Return the limit of an answer that a person waits for, at most the context.

    Chats of people send it where nobody chose a limit; models that reason get more.
    """
    count = REASONING_TOKENS if card.reasoning_format else CHAT_TOKENS
    return min(card.default_max_tokens or count, card.max_model_len)


def describe_sampling(card: ModelCard) -> str:
    """Describe the defaults in a line for people, "" for a model without any."""
    if not card.sampling or not card.can_generate:
        return ""
    values = {**_OFF, **dict(card.sampling)}
    shown = [f"temperature {values['temperature']:g}"]
    if values["temperature"]:
        shown += [f"{n} {v:g}" for n, v in values.items() if n in _CHANGED and v != _OFF[n]]
    if values.get("num_beams", 1) > 1:
        shown.append(f"num_beams {values['num_beams']}")
    if card.default_max_tokens:
        shown.append(f"max_tokens {card.default_max_tokens}")
    return f"sampling {', '.join(shown)} ({_ORIGINS[card.sampling_source]})"
