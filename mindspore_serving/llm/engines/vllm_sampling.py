"""Translation of our sampling parameters to vLLM's, by a table.

Stop strings, the end of a completion and its text are ours (`VllmEngine`), so vLLM gets none of
them.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from mindspore_serving.core.sampling_params import SAMPLING, SamplingParams
from mindspore_serving.errors import InvalidField, InvalidInputs
from mindspore_serving.llm.engine.request import GenerationRequest
from mindspore_serving.llm.grammar.source import insert_special_tokens, whitespace_options

_SAME = (
    "min_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logprobs",
    "prompt_logprobs",
)
_TRANSLATED: dict[str, Callable[[Any], Any]] = {
    "logit_bias": lambda value: dict(value) or None,
    "allowed_token_ids": lambda value: None if value is None else list(value),
    "bad_words": lambda value: list(value) or None,
}
_ABSENT = (
    "typical_p", "top_n_sigma", "xtc_probability", "dry_multiplier", "mirostat",
    "thinking_token_budget", "num_beams", "no_repeat_ngram_size",
)  # fmt: skip
_MAX_SEED = 2**63 - 1


def check(params: SamplingParams) -> None:
    """Raise InvalidField for a parameter that vLLM does not have."""
    for name in _ABSENT:
        default = SAMPLING[name].default
        if getattr(params, name) != default:
            raise InvalidField(
                name, f"is {getattr(params, name)!r}, but engine vllm supports only {default}"
            )


def translate(request: GenerationRequest, index: int) -> dict[str, Any]:
    """Return the arguments of vLLM's SamplingParams for a completion, without its grammar."""
    params = request.params
    arguments = {name: getattr(params, name) for name in _SAME}
    arguments |= {name: change(getattr(params, name)) for name, change in _TRANSLATED.items()}
    if index:
        arguments["prompt_logprobs"] = None  # the first completion has them
    return {
        **arguments,
        "max_tokens": request.max_tokens,
        "ignore_eos": True,  # all end tokens are in stop_token_ids: vLLM may know other ones
        "stop_token_ids": list(request.end_ids),
        "seed": None if params.temperature == 0 else request.seed_of(index) & _MAX_SEED,
        "detokenize": False,
    }


def structured(request: GenerationRequest, special_ids: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the arguments of vLLM's StructuredOutputsParams, for its backend guidance.

    None if the request has no grammar.
    """
    if request.grammar is None:
        return None
    if request.params.ignore_eos:
        raise InvalidInputs("engine vllm ends an answer with its grammar; leave out ignore_eos")
    grammar = request.grammar.grammar
    if grammar.kind == "regex":
        return {"regex": grammar.source}
    if grammar.kind == "lark":
        return {"grammar": insert_special_tokens(grammar.source, special_ids)}
    text = grammar.source if grammar.kind == "json_schema" else '{"type": "object"}'
    schema = json.loads(text)
    if not isinstance(schema, dict):  # true, as any JSON
        schema = {}
    guidance = whitespace_options(text)
    return {"json": {**schema, "x-guidance": guidance} if guidance else schema}
