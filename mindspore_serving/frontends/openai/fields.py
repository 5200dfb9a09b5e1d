"""The fields of OpenAI's requests: which are refused, translated and ignored, by route."""

from mindspore_serving.frontends.chat.fields import FieldRefusal, Fields
from mindspore_serving.frontends.openai import translations as to

MAX_TEMPERATURE = 2.0


def not_supported(**advice: str) -> tuple[FieldRefusal, ...]:
    return tuple(
        FieldRefusal(field, f"is not supported: {problem}") for field, problem in advice.items()
    )


_REFUSED = (
    *not_supported(
        guided_json="give response_format or structured_outputs",
        guided_regex="give structured_outputs",
        guided_choice="give structured_outputs",
        guided_grammar="give structured_outputs",
    ),
    FieldRefusal(
        "temperature",
        f"is {{}}, expected a number from 0 to {MAX_TEMPERATURE:g}",
        lambda value: not 0 <= value <= MAX_TEMPERATURE,
    ),
)
_TRANSLATED = (
    to.top_k,
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
            functions="give tools",
            function_call="give tool_choice",
            audio="the answer is text",
            web_search_options="there is no web search",
        ),
        *_REFUSED,
    ),
    translated=(
        *_TRANSLATED,
        to.chat_max_tokens,
        to.chat_logprobs,
        to.prompt_logprobs,
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
    refused=(
        *not_supported(suffix="the models answer behind the prompt, not inside it; leave it out"),
        *_REFUSED,
    ),
    translated=(
        *_TRANSLATED,
        to.completion_max_tokens,
        to.num_answers,
        to.completion_logprobs,
        to.completion_prompt_logprobs,
    ),
    ignored=("user",),
)

EMBEDDINGS = Fields(
    "openai",
    refused=(
        FieldRefusal(
            "truncate_prompt_tokens",
            "is not supported: longer texts are refused; cut them yourself",
            lambda value: True,
        ),
    ),
    ignored=("user",),
)
