"""Checks of requests, in TGI's order, and their translation to the request to the model."""

from dataclasses import dataclass

from mindspore_serving.core.default_sampling import SEARCHED
from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.errors import InvalidField, NotFound
from mindspore_serving.frontends.chat.models import LanguageModels, ServedModel
from mindspore_serving.frontends.request_options import RequestOptions
from mindspore_serving.frontends.tgi.errors import invalid
from mindspore_serving.frontends.tgi.fields import FIELDS, is_sampled
from mindspore_serving.frontends.tgi.requests import TgiParameters


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of a request's parameters, and of concurrent requests."""

    max_concurrent_requests: int = 10_000
    max_best_of: int = 2
    max_stop_sequences: int = 4
    max_top_n_tokens: int = 5
    max_client_batch_size: int = 4


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A valid request: model, options, and the parts of the answer that the client wants.

    `prefix` is put before the answer's text.  `max_new_tokens` is None for all that the context
    holds.
    """

    model: ServedModel
    generate: Generate
    options: RequestOptions
    num_characters: int
    prefix: str
    best_of: int
    is_sampled: bool
    has_details: bool
    top_n: int
    max_new_tokens: int | None


def find_model(models: LanguageModels, adapter_id: str | None) -> ServedModel:
    """Return the adapter or model that `adapter_id` names, else the first model that generates.

    Raises TgiError if `adapter_id` names none, NotFound if there is no model.
    """
    try:
        return models.find(adapter_id)
    except NotFound as error:
        if adapter_id is None:
            raise
        raise invalid(str(error)) from None


def check(
    model: ServedModel,
    inputs: str,
    parameters: TgiParameters,
    limits: RequestLimits,
    *,
    options: RequestOptions,
    is_stream: bool,
) -> CheckedRequest:
    """Check the parameters and return the request to run.

    Raises TgiError or InvalidField for the first invalid parameter.
    """
    if is_stream:
        _check_stream(parameters)
    _check_best_of(parameters, limits)
    try:
        FIELDS.refuse(parameters)
    except InvalidField as error:
        raise invalid(str(error.renamed(f"`{error.field}`"))) from None
    _check_extent(parameters, limits)
    if not inputs:
        raise invalid("`inputs` cannot be empty")
    max_input, truncate = model.card.longest_prompt, parameters.truncate
    if truncate is not None and not 0 < truncate <= max_input:
        raise invalid(
            f"`truncate` must be strictly positive and less than {max_input}. Given: {truncate}"
        )
    return CheckedRequest(
        model=model,
        generate=_to_generate(model, inputs, parameters, is_stream=is_stream),
        options=options,
        num_characters=len(inputs),
        prefix=inputs if parameters.return_full_text else "",
        best_of=parameters.best_of or 1,
        is_sampled=is_sampled(parameters),
        has_details=parameters.details or (parameters.decoder_input_details and not is_stream),
        top_n=parameters.top_n_tokens or 0,
        max_new_tokens=parameters.max_new_tokens,
    )


def _check_stream(parameters: TgiParameters) -> None:
    if parameters.best_of not in (None, 1):
        raise invalid("`best_of` != 1 is not supported when streaming tokens")
    if parameters.decoder_input_details:
        raise invalid("`decoder_input_details` == true is not supported when streaming tokens")


def _check_best_of(parameters: TgiParameters, limits: RequestLimits) -> None:
    best_of, max_best_of = parameters.best_of, limits.max_best_of
    if best_of in (None, 1):
        return
    if max_best_of == 1:
        raise invalid("`best_of` != 1 is not allowed for this endpoint")
    if not 0 < best_of <= max_best_of:
        raise invalid(f"`best_of` must be > 0 and <= {max_best_of}. Given: {best_of}")
    if not is_sampled(parameters):
        raise invalid("you must use sampling when `best_of` is > 1")


def _check_extent(parameters: TgiParameters, limits: RequestLimits) -> None:
    count, max_count = len(parameters.stop), limits.max_stop_sequences
    if count > max_count:
        raise invalid(f"`stop` supports up to {max_count} stop sequences. Given: {count}")
    if parameters.seed is not None and (parameters.best_of or 1) > 1:
        raise invalid("`seed` must not be set when `best_of` > 1")
    top_n, max_top_n = parameters.top_n_tokens or 0, limits.max_top_n_tokens
    if top_n > max_top_n:
        raise invalid(f"`top_n_tokens` must be >= 0 and <= {max_top_n}. Given: {top_n}")


def _to_generate(
    model: ServedModel, inputs: str, parameters: TgiParameters, *, is_stream: bool
) -> Generate:
    has_prompt = parameters.decoder_input_details
    has_tokens = is_stream or parameters.details or has_prompt or (parameters.best_of or 1) > 1
    logprobs = (parameters.top_n_tokens or 0) if has_tokens else None
    defaults = model.card.defaults
    limit = {name: defaults.get(name) for name in SEARCHED if name in (*defaults, "max_tokens")}
    return Generate(
        prompt=inputs,
        params=FIELDS.params(parameters, model.card, limit, logprobs=logprobs),
        is_stream=is_stream,
        has_tokens=has_tokens,
        has_markdown=model.card.takes_images,
        adapter=model.adapter,
        **FIELDS.options(parameters, model.card),
    )
