"""Parameters as the original understood them: what is out of range is put into it, not refused."""

from mindspore_serving.core.generation import MAX_LOGPROBS, SamplingParams
from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.frontends.language import LanguageModel
from mindspore_serving.frontends.llm_serving.requests import ClientRequest, Parameters

DEFAULT_TOP_K, MOST_TOP_K = 3, 100
DEFAULT_MAX_NEW_TOKENS = 300
LEAST_TOP_P = 0.01
MOST_TEMPERATURE = 100.0  # of ours; up to 65536 is taken, and makes no difference any more
_MOST_TOKENS = 2**31

# Put around the prompt where a model is served under this name; they write their special tokens.
TEMPLATES = {
    "internlm_7b": "<s><s><|User|>:{}<eoh>\n<|Bot|>:",
    "baichuan2pa": "<reserved_106>{}<reserved_107>",
}


def to_ask(request: ClientRequest, model: LanguageModel, *, is_stream: bool) -> Generate:
    """Raises InvalidInputs for what has no nearest value, such as too many stop strings."""
    given = request.parameters or Parameters()
    template = TEMPLATES.get(model.servable)
    max_tokens = _max_tokens(given)
    return Generate(
        prompt=template.format(request.inputs) if template else request.inputs,
        params=_to_params(given, model.card, max_tokens),
        truncate=_truncate(given, model.card, max_tokens),
        add_special=template is None,
        is_stream=is_stream,
        has_tokens=True,
        has_prompt_tokens=bool(given.decoder_input_details),
        must_fit=given.max_new_tokens is not None,
        adapter=model.adapter,
    )


def _to_params(given: Parameters, card: ModelCard, max_tokens: int) -> SamplingParams:
    temperature = 1.0 if given.temperature is None else given.temperature
    is_sampled = bool(given.do_sample) and 1e-5 < temperature <= 65536
    penalty = 1.0 if given.repetition_penalty is None else given.repetition_penalty
    typical_p = given.typical_p or 1.0
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=min(temperature, MOST_TEMPERATURE) if is_sampled else 0.0,
        top_k=_top_k(given.top_k, card.vocab_size),
        top_p=_top_p(given.top_p),
        typical_p=typical_p if 0 < typical_p < 1 else 1.0,
        repetition_penalty=penalty if 0 < penalty < float("inf") else 1.0,
        stop=[stop for stop in given.stop or () if stop],
        include_stop=True,
        seed=given.seed % 2**64 if given.seed else None,
        logprobs=min(max(given.top_n_tokens or 0, 0), MAX_LOGPROBS),
    )


def _top_k(top_k: int | None, vocab_size: int) -> int:
    if top_k is None:
        top_k = DEFAULT_TOP_K
    return min(top_k, MOST_TOP_K) if 0 < top_k < vocab_size else 1


def _top_p(top_p: float | None) -> float:
    if top_p is None or 0 < top_p <= 1:
        return top_p or 1.0
    return LEAST_TOP_P if top_p <= 0 else 1.0


def _max_tokens(given: Parameters) -> int:
    wanted = given.max_new_tokens
    return min(max(1, DEFAULT_MAX_NEW_TOKENS if wanted is None else wanted), _MOST_TOKENS)


def _truncate(given: Parameters, card: ModelCard, max_tokens: int) -> int | None:
    """True makes room for the answer; a number is how many tokens of the prompt are kept."""
    if given.truncate is True:
        return max(1, card.max_model_len - max_tokens)
    if not given.truncate or given.truncate < 0:
        return None
    return min(given.truncate, card.max_model_len)
