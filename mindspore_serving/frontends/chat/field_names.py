"""Names that one field has in the protocols and servers of language models.

A client that sends the name of another protocol means the field: ignoring `max_new_tokens` would
return an answer of any length.  Knows no protocol's errors.
"""

from collections.abc import Collection, Mapping, Sequence

from mindspore_serving.errors import letters_of

# The names of one field in each row, the commonest first.
ROWS = (
    (
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens"),
        *("num_predict", "n_predict", "max_length", "max_tokens_to_sample", "max_gen_len"),
        "maxOutputTokens",
    ),
    ("prompt", "inputs", "input", "text_input"),
    ("min_tokens", "min_new_tokens"),
    ("n", "num_return_sequences", "candidate_count", "candidateCount"),
    ("temperature", "do_sample"),
    ("top_k", "topK"),
    ("top_p", "topP"),
    ("frequency_penalty", "frequencyPenalty"),
    ("presence_penalty", "presencePenalty"),
    ("typical_p", "typ_p"),
    ("repetition_penalty", "repeat_penalty", "rep_pen"),
    ("stop", "stop_sequences", "stopSequences", "stop_strings", "stop_words"),
    ("include_stop_str_in_output", "include_stop"),
    ("seed", "random_seed", "sampling_seed"),
    ("top_logprobs", "logprobs", "top_n_tokens", "n_probs"),
    ("response_format", "format", "json_schema"),
)
_REMARKS = {"do_sample": ", where 0 takes the likeliest token"}
# Fields without another name here: a field that the route must know, whether the body must lack it,
# and what to send.
_ADVICE: Mapping[str, Sequence[tuple[str, bool, str]]] = {
    "system": [("messages", False, "send a message with the role system")],
    "extra_body": [
        ("model", False, "it is an argument of OpenAI's library: send its fields instead")
    ],
    "prompt": [("messages", True, "send messages, or call a route for prompts")],
    "messages": [
        ("input", True, "did you mean input?"),
        ("prompt", True, "send a prompt, or call a route for chats"),
    ],
}


_BY_LETTERS: Mapping[str, tuple[str, ...]] = {letters_of(name): row for row in ROWS for name in row}


def names_here(name: str, known: Collection[str]) -> list[str]:
    """Return the names in `known` of the field that is called `name` elsewhere, best first."""
    return [other for other in _BY_LETTERS.get(letters_of(name), ()) if other in known]


def remark_on(name: str) -> str:
    """Return how the value of `name` translates, "" if it stays."""
    return _REMARKS.get(name, "")


def advice_on(name: str, known: Collection[str], body: Collection[str]) -> str:
    """Return what to send in place of a field without another name, "" if it is ignored."""
    for needed, is_alternative, advice in _ADVICE.get(name, ()):
        if needed in known:
            return "" if is_alternative and needed in body else advice
    return ""
