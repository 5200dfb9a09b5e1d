"""Requests into asks of a model: which parameters are accepted, in the order they are looked at,
and what they mean to the engine.  Sends nothing.
"""

import json
from dataclasses import dataclass

from mindspore_serving.core.generation import SamplingParams
from mindspore_serving.core.llm_messages import Generate, Grammar
from mindspore_serving.errors import InvalidInputs, NotFound
from mindspore_serving.frontends.language import LanguageModel, LanguageModels
from mindspore_serving.frontends.tgi.errors import TgiError, invalid
from mindspore_serving.frontends.tgi.requests import (
    Grammars,
    Parameters,
    RegexGrammar,
    SchemaGrammar,
)

SPACES = {"whitespace_flexible": True, "whitespace_pattern": "[ ]"}  # at most one anywhere
MOST_TEMPERATURE = 100.0  # beyond it all tokens are as good as equally likely


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for, and how many may be open at once."""

    max_concurrent_requests: int = 10_000
    max_best_of: int = 2
    max_stop_sequences: int = 4
    max_top_n_tokens: int = 5
    max_client_batch_size: int = 4


@dataclass(frozen=True, slots=True)
class Job:
    """A request that was checked: what is asked of which model, and what is shown of the answer.

    `prefix` is put before the answer's text; `max_new_tokens` is None up to the context's end.
    """

    model: LanguageModel
    ask: Generate
    num_characters: int
    prefix: str
    best_of: int
    is_sampled: bool
    has_details: bool
    top_n: int
    max_new_tokens: int | None


def find_model(models: LanguageModels, adapter_id: str | None) -> LanguageModel:
    """The one that `adapter_id` names, adapter or model; else the first that generates.  Raises
    TgiError if it names none, NotFound if there is none."""
    try:
        return models.find(adapter_id)
    except NotFound as error:
        if adapter_id is None:
            raise
        raise invalid(str(error)) from None


def to_job(
    model: LanguageModel, inputs: str, parameters: Parameters, limits: Limits, *, is_stream: bool
) -> Job:
    """Raises TgiError naming the first parameter that is wrong."""
    if is_stream:
        _check_stream(parameters)
    max_input = model.card.max_model_len - 1
    _check_best_of(parameters, limits)
    _check_numbers(parameters)
    _check_extent(parameters, limits)
    if not inputs:
        raise invalid("`inputs` cannot be empty")
    truncate = parameters.truncate
    if truncate is not None and not 0 < truncate <= max_input:
        raise invalid(
            f"`truncate` must be strictly positive and less than {max_input}. Given: {truncate}"
        )
    best_of = parameters.best_of or 1
    has_details = parameters.details or (parameters.decoder_input_details and not is_stream)
    return Job(
        model=model,
        ask=_to_ask(model, inputs, parameters, is_stream=is_stream),
        num_characters=len(inputs),
        prefix=inputs if parameters.return_full_text else "",
        best_of=best_of,
        is_sampled=parameters.is_sampled,
        has_details=has_details,
        top_n=parameters.top_n_tokens or 0,
        max_new_tokens=parameters.max_new_tokens,
    )


def _check_stream(parameters: Parameters) -> None:
    if parameters.best_of not in (None, 1):
        raise invalid("`best_of` != 1 is not supported when streaming tokens")
    if parameters.decoder_input_details:
        raise invalid("`decoder_input_details` == true is not supported when streaming tokens")


def _check_best_of(parameters: Parameters, limits: Limits) -> None:
    best_of, most = parameters.best_of, limits.max_best_of
    if best_of in (None, 1):
        return
    if most == 1:
        raise invalid("`best_of` != 1 is not allowed for this endpoint")
    if not 0 < best_of <= most:
        raise invalid(f"`best_of` must be > 0 and <= {most}. Given: {best_of}")
    if not parameters.is_sampled:
        raise invalid("you must use sampling when `best_of` is > 1")


def _check_numbers(parameters: Parameters) -> None:
    given = parameters
    if given.temperature is not None and given.temperature <= 0:
        raise invalid("`temperature` must be strictly positive")
    if given.repetition_penalty is not None and given.repetition_penalty <= 0:
        raise invalid("`repetition_penalty` must be strictly positive")
    if given.frequency_penalty is not None and abs(given.frequency_penalty) > 2:
        raise invalid("`frequency_penalty` must be >= -2.0 and <= 2.0")
    if given.top_p is not None and not 0 < given.top_p < 1:
        raise invalid("`top_p` must be > 0.0 and < 1.0")
    if given.typical_p is not None and not 0 < given.typical_p < 1:
        raise invalid("`typical_p` must be > 0.0 and < 1.0")
    if given.top_k is not None and given.top_k <= 0:
        raise invalid("`top_k` must be strictly positive")
    if given.max_new_tokens == 0:
        raise invalid("`max_new_tokens` must be strictly positive")


def _check_extent(parameters: Parameters, limits: Limits) -> None:
    count, most = len(parameters.stop), limits.max_stop_sequences
    if count > most:
        raise invalid(f"`stop` supports up to {most} stop sequences. Given: {count}")
    if parameters.seed is not None and (parameters.best_of or 1) > 1:
        raise invalid("`seed` must not be set when `best_of` > 1")
    top_n, most = parameters.top_n_tokens or 0, limits.max_top_n_tokens
    if top_n > most:
        raise invalid(f"`top_n_tokens` must be >= 0 and <= {most}. Given: {top_n}")
    if parameters.watermark:
        raise invalid("`watermark` is not supported")


def _to_ask(
    model: LanguageModel, inputs: str, parameters: Parameters, *, is_stream: bool
) -> Generate:
    wants_prompt = parameters.decoder_input_details
    has_tokens = is_stream or parameters.details or wants_prompt or (parameters.best_of or 1) > 1
    return Generate(
        prompt=inputs,
        params=_to_params(parameters, has_tokens=has_tokens),
        grammar=to_grammar(parameters.grammar),
        truncate=parameters.truncate,
        is_stream=is_stream,
        has_tokens=has_tokens,
        must_fit=True,
        adapter=model.adapter,
    )


def _to_params(parameters: Parameters, *, has_tokens: bool) -> SamplingParams:
    temperature = 1.0 if parameters.temperature is None else parameters.temperature
    penalty, frequency = parameters.repetition_penalty, parameters.frequency_penalty
    try:
        return SamplingParams(
            max_tokens=parameters.max_new_tokens,
            temperature=min(temperature, MOST_TEMPERATURE) if parameters.is_sampled else 0.0,
            top_k=parameters.top_k or 0,
            top_p=parameters.top_p or 1.0,
            typical_p=parameters.typical_p or 1.0,
            repetition_penalty=1.0 if penalty is None else penalty,
            frequency_penalty=frequency or 0.0,
            stop=parameters.stop,
            include_stop=True,
            seed=parameters.seed,
            logprobs=(parameters.top_n_tokens or 0) if has_tokens else None,
            prompt_logprobs=0 if parameters.decoder_input_details else None,
        )
    except InvalidInputs as error:
        raise invalid(str(error)) from None


def to_grammar(grammar: Grammars | None) -> Grammar | None:
    """Raises TgiError for a JSON grammar that is no schema of an object's properties."""
    if grammar is None:
        return None
    if isinstance(grammar, RegexGrammar):
        return Grammar("regex", grammar.value)
    schema = grammar.value.schema if isinstance(grammar, SchemaGrammar) else grammar.value
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise _wrong_grammar(str(error)) from None
    elif not isinstance(schema, dict):
        raise invalid("grammar is not supported")
    if not isinstance(schema, dict) or "properties" not in schema:
        raise _wrong_grammar("Grammar must have a 'properties' field")
    return Grammar("json_schema", json.dumps({"x-guidance": SPACES} | schema))


def _wrong_grammar(text: str) -> TgiError:
    return invalid(f"grammar is not valid: {text}")
