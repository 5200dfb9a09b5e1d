"""Our sampling parameters as vLLM's, by a table.

Stop strings, the end of an answer and its text are ours (`answers`), so vLLM gets none of them.
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
    "logit_bias": lambda given: dict(given) or None,
    "allowed_token_ids": lambda given: None if given is None else list(given),
    "bad_words": lambda given: list(given) or None,
}
_ABSENT = ("typical_p", "top_n_sigma", "xtc_probability")
_MOST_SEED = 2**63 - 1


def check(params: SamplingParams) -> None:
    """Raises InvalidField for a parameter that vLLM has not."""
    for name in _ABSENT:
        default = SAMPLING[name].default
        if getattr(params, name) != default:
            raise InvalidField(
                name, f"is {getattr(params, name)!r}, but engine vllm has only {default}"
            )


def translate(request: GenerationRequest, index: int) -> dict[str, Any]:
    """The arguments of vLLM's SamplingParams for one answer, but for its grammar."""
    params = request.params
    given = {name: getattr(params, name) for name in _SAME}
    given |= {name: change(getattr(params, name)) for name, change in _TRANSLATED.items()}
    if index:
        given["prompt_logprobs"] = None  # the first answer has them
    return {
        **given,
        "max_tokens": request.max_tokens,
        "ignore_eos": True,  # all ends are named, as vLLM may know others
        "stop_token_ids": list(request.end_ids),
        "seed": None if params.temperature == 0 else request.seed_of(index) & _MOST_SEED,
        "detokenize": False,
    }


def structured(request: GenerationRequest, special_ids: Mapping[str, int]) -> dict[str, Any] | None:
    """The arguments of vLLM's StructuredOutputsParams, for its backend guidance; None for none."""
    if request.grammar is None:
        return None
    if request.params.ignore_eos:
        raise InvalidInputs("engine vllm ends an answer where its grammar does: no ignore_eos")
    grammar = request.grammar.grammar
    if grammar.kind == "regex":
        return {"regex": grammar.source}
    if grammar.kind == "lark":
        return {"grammar": insert_special_tokens(grammar.source, special_ids)}
    text = grammar.source if grammar.kind == "json_schema" else '{"type": "object"}'
    schema = json.loads(text)
    if not isinstance(schema, dict):  # true, as any JSON
        schema = {}
    own = whitespace_options(text)
    return {"json": {**schema, "x-guidance": own} if own else schema}
