"""Translations of OpenAI's fields to sampling parameters and fields of the request to a model.

Each function takes the body and the model's card, returns None for "not set", and raises
InvalidField. Its docstring describes the field in docs and in /openapi.json.
"""

from typing import Any

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.sampling_params import MAX_SEQUENCES
from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import at_least_zero, translation, unexpected
from mindspore_serving.frontends.chat.prompts import check_tokens
from mindspore_serving.frontends.decoding import check_free
from mindspore_serving.frontends.openai.grammars import to_grammar

MAX_BIAS = 100.0
MAX_STOPS = 4
MAX_CHAT_LOGPROBS = 20
MAX_COMPLETION_LOGPROBS = 5
DEFAULT_MAX_TOKENS = 16  # of a completion


@translation("top_k")
def top_k(body: Any, _: ModelCard) -> int | None:
    """Read -1 as 0: all tokens."""
    return 0 if body.top_k == -1 else body.top_k


@translation("num_beams", "use_beam_search", "n", to="num_beams")
def num_beams(body: Any, _: ModelCard) -> int | None:
    """Follow as many answers in a beam search; `use_beam_search` alone follows `n`."""
    count: int | None = body.num_beams
    return (body.n or 1) if body.use_beam_search and count is None else count


@translation("seed")
def seed(body: Any, _: ModelCard) -> int | None:
    """Take the seed modulo 2**64, as OpenAI's seeds are signed."""
    return None if body.seed is None else body.seed % 2**64


@translation("stop")
def stop(body: Any, _: ModelCard) -> list[str]:
    """Stop at a text, or at any of up to 4."""
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stops) > MAX_STOPS:
        raise InvalidField("stop", f"has {len(stops)} texts, expected at most {MAX_STOPS}")
    return stops


@translation("logit_bias")
def logit_bias(body: Any, card: ModelCard) -> dict[int, float] | None:
    """Add biases from -100 to 100."""
    biases: dict[int, float] | None = body.logit_bias
    check_tokens("logit_bias", biases or (), card)
    for token_id, bias in (biases or {}).items():
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            name = f"logit_bias[{token_id}]"
            raise unexpected(name, bias, "a number from -100 to 100")
    return biases


@translation("stop_token_ids")
def stop_token_ids(body: Any, card: ModelCard) -> list[int] | None:
    """Stop at token ids of the model."""
    ids: list[int] | None = body.stop_token_ids
    check_tokens("stop_token_ids", ids or (), card)
    return ids


@translation("truncate_prompt_tokens", to="truncate")
def truncate(body: Any, _: ModelCard) -> int | None:
    """Keep this many tokens at the end of the prompt."""
    count: int | None = body.truncate_prompt_tokens
    if count is not None and count < 1:
        raise unexpected("truncate_prompt_tokens", count, "at least 1")
    return count


@translation("response_format", "structured_outputs", "grammar", to="grammar")
def grammar(body: Any, _: ModelCard) -> Grammar | None:
    """Constrain the answer; only one may be set. `grammar` is GBNF, as of llama.cpp, or Lark."""
    return to_grammar(body.response_format, body.structured_outputs, body.grammar)


@translation("max_completion_tokens", "max_tokens", to="max_tokens")
def chat_max_tokens(body: Any, _: ModelCard) -> int | None:
    """Limit the tokens of the answer, by default to the end of the context."""
    new: int | None = body.max_completion_tokens
    old: int | None = body.max_tokens
    name, count = ("max_tokens", old) if new is None else ("max_completion_tokens", new)
    if new is not None and old is not None and new != old:
        raise InvalidField(
            name, text=f"max_tokens is {old} and {name} is {new}: set only one of them"
        )
    if count is not None and count < 1:
        raise unexpected(name, count, "at least 1")
    return count


@translation("top_logprobs", "logprobs", to="logprobs")
def chat_logprobs(body: Any, _: ModelCard) -> int | None:
    """Return up to 20 alternatives for each token; needs `logprobs: true`."""
    count: int | None = body.top_logprobs
    if count is not None and not 0 <= count <= MAX_CHAT_LOGPROBS:
        raise unexpected("top_logprobs", count, f"0 to {MAX_CHAT_LOGPROBS}")
    if body.logprobs:
        return count or 0
    if count:
        raise InvalidField("top_logprobs", "is set, expected logprobs: true with it")
    return None


_TEMPLATE_FIELDS = ("add_generation_prompt", "continue_final_message", "documents")


@translation("thinking_token_budget", "reasoning")
def thinking_token_budget(body: Any, _: ModelCard) -> int | None:
    """Limit the reasoning, also as `reasoning.max_tokens`."""
    if body.thinking_token_budget is None and body.reasoning:
        return at_least_zero("reasoning.max_tokens", body.reasoning.max_tokens)
    limit: int | None = body.thinking_token_budget
    return limit


_REASONING_FIELDS = ("reasoning_effort", "reasoning")


@translation(*_REASONING_FIELDS, "chat_template_kwargs", *_TEMPLATE_FIELDS, to="template_options")
def template_options(body: Any, _: ModelCard) -> dict[str, Any]:
    """Set variables of the chat template; `"none"` also sets `enable_thinking` to false."""
    options: dict[str, Any] = {}
    effort = body.reasoning_effort or (body.reasoning.effort if body.reasoning else None)
    if effort is not None:
        options["reasoning_effort"] = effort
        if effort == "none":
            options["enable_thinking"] = False
    for name in _TEMPLATE_FIELDS:
        value = getattr(body, name)
        check_free(name, value)
        if value is not None:
            options[name] = value
    template_kwargs = body.chat_template_kwargs or {}
    check_free("chat_template_kwargs", template_kwargs)
    return {**options, **template_kwargs}


@translation("chat_template")
def chat_template(body: Any, _: ModelCard) -> str | None:
    """Replace the model's chat template, if the server has `--allow-chat-template`."""
    template: str | None = body.chat_template
    return template


@translation("prompt_logprobs")
def prompt_logprobs(body: Any, _: ModelCard) -> int | None:
    """Return 0 to 20 alternatives for each token of the prompt, as vLLM does; not in a stream."""
    count: int | None = body.prompt_logprobs
    if count is None:
        return None
    if not 0 <= count <= MAX_CHAT_LOGPROBS:
        raise unexpected("prompt_logprobs", count, f"0 to {MAX_CHAT_LOGPROBS}")
    if body.stream:
        raise InvalidField("prompt_logprobs", "is set, expected no stream with it")
    return count


@translation("max_tokens")
def completion_max_tokens(body: Any, card: ModelCard) -> int:
    """Limit the tokens of the answer, by default to 16; 0 with `echo` generates nothing."""
    # An echo alone also generates one token: without it the prompt is never scored.
    count: int = body.max_tokens
    if count is None:
        count = card.default_max_tokens or DEFAULT_MAX_TOKENS
    if count < 0 or (count == 0 and not body.echo):
        raise unexpected("max_tokens", count, "at least 1, or 0 with echo: true")
    return max(1, count)


@translation("best_of", "n", to="n")
def num_answers(body: Any, _: ModelCard) -> int:
    """Return the `n` likeliest of `best_of` completions."""
    n: int = 1 if body.n is None else body.n
    count: int = n if body.best_of is None else body.best_of
    if body.best_of is not None and not n <= count <= MAX_SEQUENCES:
        raise unexpected("best_of", count, f"n={n} to {MAX_SEQUENCES}")
    if body.stream and count > n:
        raise InvalidField(
            "best_of",
            f"is {count} and n is {n}: a stream cannot choose among completions, expected "
            "both to be equal",
        )
    return count


@translation("logprobs")
def completion_logprobs(body: Any, card: ModelCard) -> int | None:
    """Return up to 5 alternatives for each token."""
    count: int | None = body.logprobs
    if count is not None and not 0 <= count <= MAX_COMPLETION_LOGPROBS:
        raise unexpected("logprobs", count, f"0 to {MAX_COMPLETION_LOGPROBS}")
    if count is None and num_answers.make(body, card) > (body.n or 1):
        return 0  # the best answer is chosen by them
    return count


@translation("prompt_logprobs", "echo", to="prompt_logprobs")
def completion_prompt_logprobs(body: Any, card: ModelCard) -> int | None:
    """Return alternatives for the prompt's tokens; `echo` puts the prompt before the answer.

    With `echo` and `logprobs` the prompt has log-probabilities, too.
    """
    requested: int | None = prompt_logprobs.make(body, card)
    echoed = body.logprobs if body.echo else None
    return echoed if requested is None else max(requested, echoed or 0)
