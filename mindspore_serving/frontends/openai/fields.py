"""The fields of OpenAI's requests: which are refused, translated and ignored, by route."""

from mindspore_serving.frontends.fields import Fields, Refusal, Translation
from mindspore_serving.frontends.openai import translations
from mindspore_serving.frontends.openai.translations import (
    DEFAULT_MAX_TOKENS,
    MAX_BIAS,
    MAX_CHAT_LOGPROBS,
    MAX_COMPLETION_LOGPROBS,
    MAX_STOPS,
)

MAX_TEMPERATURE = 2.0


def _not_supported(**advice: str) -> tuple[Refusal, ...]:
    return tuple(
        Refusal(field, f"{field} is not supported: {text}") for field, text in advice.items()
    )


# --- what both chats and completions do -------------------------------------------------------


_REFUSED = (
    *_not_supported(
        guided_json="give response_format or structured_outputs",
        guided_regex="give structured_outputs",
        guided_choice="give structured_outputs",
        guided_grammar="give structured_outputs",
    ),
    Refusal(
        "temperature",
        f"temperature is {{}}, expected a number from 0 to {MAX_TEMPERATURE:g}",
        lambda value: not 0 <= value <= MAX_TEMPERATURE,
    ),
)
_TRANSLATED = (
    Translation(
        ("top_k",),
        "top_k",
        "-1 is 0, all tokens",
        lambda body, card: 0 if body.top_k == -1 else body.top_k,
    ),
    Translation(
        ("seed",),
        "seed",
        "modulo 2**64, as OpenAI's are signed",
        lambda body, card: None if body.seed is None else body.seed % 2**64,
    ),
    Translation(("stop",), "stop", f"a text, or up to {MAX_STOPS}", translations.stop),
    Translation(
        ("logit_bias",),
        "logit_bias",
        f"values of {-MAX_BIAS:g} to {MAX_BIAS:g}",
        translations.logit_bias,
    ),
    Translation(
        ("stop_token_ids",), "stop_token_ids", "ids that the model has", translations.stop_token_ids
    ),
    Translation(
        ("truncate_prompt_tokens",),
        "truncate",
        "that many tokens at the end of the prompt are kept",
        translations.truncate,
    ),
    Translation(
        ("response_format", "structured_outputs"),
        "grammar",
        "the model can write nothing else; only one of them may be given",
        translations.grammar,
    ),
)

# --- chats --------------------------------------------------------------------------------------


CHAT = Fields(
    "openai",
    refused=(
        *_not_supported(
            functions="give tools",
            function_call="give tool_choice",
            audio="the answer is text",
            web_search_options="there is no web search",
        ),
        *_REFUSED,
    ),
    translated=(
        *_TRANSLATED,
        Translation(
            ("max_completion_tokens", "max_tokens"),
            "max_tokens",
            "up to the end of the context if it is not given",
            translations.chat_max_tokens,
        ),
        Translation(
            ("top_logprobs", "logprobs"),
            "logprobs",
            f"with `logprobs: true`; at most {MAX_CHAT_LOGPROBS}",
            translations.chat_logprobs,
        ),
        Translation(
            ("reasoning_effort", "chat_template_kwargs"),
            "template_options",
            'variables of the chat template; `"none"` sets `enable_thinking` to false, too',
            translations.template_options,
        ),
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

# --- completions --------------------------------------------------------------------------------


COMPLETIONS = Fields(
    "openai",
    refused=(
        *_not_supported(suffix="the models answer behind the prompt, not inside it; leave it out"),
        *_REFUSED,
    ),
    translated=(
        *_TRANSLATED,
        Translation(
            ("max_tokens",),
            "max_tokens",
            f"{DEFAULT_MAX_TOKENS} if it is not given; 0 with `echo` generates nothing",
            translations.completion_max_tokens,
        ),
        Translation(
            ("best_of", "n"),
            "n",
            "the `n` likeliest of `best_of` answers are given",
            translations.best_of,
        ),
        Translation(
            ("logprobs",),
            "logprobs",
            f"at most {MAX_COMPLETION_LOGPROBS}",
            translations.completion_logprobs,
        ),
        Translation(
            ("echo",),
            "prompt_logprobs",
            "the prompt is put before the answer, with log-probabilities if `logprobs` is given",
            lambda body, card: body.logprobs if body.echo else None,
        ),
    ),
    ignored=("user",),
)

# --- responses and embeddings -------------------------------------------------------------------

RESPONSES = Fields(
    "openai",
    refused=(
        *_not_supported(
            previous_response_id="responses are not stored: give the whole conversation in input",
            conversation="conversations are not stored: give all of it in input",
            prompt="there are no stored prompts: give instructions and input",
            background="the answer is in the response: leave it out, or stream",
        ),
        Refusal(
            "truncation",
            "truncation is {}, expected disabled: nothing is left out of the input, and one that "
            "is too long is refused",
            lambda value: value != "disabled",
        ),
    ),
    ignored=(
        "max_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
    ),
)
EMBEDDINGS = Fields(
    "openai",
    refused=(
        Refusal(
            "truncate_prompt_tokens",
            "truncate_prompt_tokens is not supported: longer texts are refused; cut them yourself",
            lambda value: True,
        ),
    ),
    ignored=("user",),
)
