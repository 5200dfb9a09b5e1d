"""Fields of OpenAI's requests by route: refused, translated, ignored."""

from mindspore_serving.frontends.chat import languages
from mindspore_serving.frontends.chat.fields import FieldRefusal, Fields
from mindspore_serving.frontends.openai import translations as to

MAX_TEMPERATURE = 2.0


def not_supported(**advice: str) -> tuple[FieldRefusal, ...]:
    """Return refusals of unsupported fields, each with advice on what to send instead."""
    return tuple(FieldRefusal(field, f"is not supported: {hint}") for field, hint in advice.items())


_REFUSED = (
    *not_supported(
        guided_json="use response_format or structured_outputs",
        guided_regex="use structured_outputs",
        guided_choice="use structured_outputs",
        guided_grammar="use structured_outputs",
    ),
    FieldRefusal(
        "temperature",
        f"is {{}}, expected a number from 0 to {MAX_TEMPERATURE:g}",
        lambda value: not 0 <= value <= MAX_TEMPERATURE,
    ),
)
_TRANSLATED = (
    to.top_k,
    to.num_beams,
    to.seed,
    to.stop,
    to.logit_bias,
    to.stop_token_ids,
    to.truncate,
    to.grammar,
)

CHAT = Fields(
    "openai",
    refused=(
        *not_supported(
            functions="use tools",
            function_call="use tool_choice",
            audio="answers are text only",
            web_search_options="there is no web search",
        ),
        *_REFUSED,
    ),
    translated=(
        *_TRANSLATED,
        to.chat_max_tokens,
        to.chat_logprobs,
        to.prompt_logprobs,
        to.thinking_token_budget,
        to.template_options,
        to.chat_template,
    ),
    ignored=(
        "metadata",
        "modalities",
        "prediction",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    ),
)

COMPLETIONS = Fields(
    "openai",
    refused=(*_REFUSED,),
    translated=(
        *_TRANSLATED,
        to.completion_max_tokens,
        to.num_answers,
        to.completion_logprobs,
        to.completion_prompt_logprobs,
        *languages.BOTH,
    ),
    ignored=("user",),
)

EMBEDDINGS = Fields(
    "openai",
    refused=(
        FieldRefusal(
            "truncate_prompt_tokens",
            "is not supported: texts that are too long are refused; shorten them",
            lambda value: True,
        ),
    ),
    ignored=("user",),
)
