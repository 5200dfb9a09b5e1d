"""A request as the other server takes it; what has no counterpart there is refused by its name."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from mindspore_serving.core.llm_messages import Generate, Grammar, ToolChoice
from mindspore_serving.core.sampling_params import SAMPLING, SamplingParams
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.upstream.options import UpstreamOptions

CHAT, COMPLETIONS = "/chat/completions", "/completions"
_MOST_SIGNED = 2**63 - 1
_DRAWING = frozenset({
    "seed", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability",
    "xtc_threshold",
})  # fmt: skip
"""What changes nothing where the likeliest token is taken."""
_ALWAYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What the server would otherwise take from the model's own recommendation."""
_OWN_FIELDS = ("add_generation_prompt", "continue_final_message", "documents", "reasoning_effort")


def to_body(request: Generate, model: str, options: UpstreamOptions) -> tuple[str, bytes]:
    """The path and the JSON of a request for a stream.  Raises InvalidField."""
    is_chat = request.messages is not None
    body: dict[str, Any] = {"model": model, "stream": True}
    body["stream_options"] = {"include_usage": True}
    if options.dialect == "vllm":
        body["stream_options"]["continuous_usage_stats"] = True
    body |= _sampling(request.params, options, is_chat=is_chat)
    body |= _extensions(request, options)
    body |= _form(request.grammar, options)
    if is_chat:
        body["messages"] = [*_to_messages(request.messages or [], options)]
        body |= _tools(request) | _template(request, options)
        return CHAT, msgspec.json.encode(body)
    body["prompt"] = request.prompt
    return COMPLETIONS, msgspec.json.encode(body)


def _sampling(params: SamplingParams, options: UpstreamOptions, *, is_chat: bool) -> dict[str, Any]:
    found = {name: getattr(params, name) for name in _ALWAYS if name in options.known}
    for name, value in _given(params):
        if name not in options.known:
            has = f"the upstream (dialect {options.dialect}) has no such parameter"
            raise InvalidField(name, f"is {value!r}, but {has}")
        found[SAMPLING[name].aliases["openai"] or name] = value
    if params.max_tokens is None and not is_chat:
        problem = "is not given, but the upstream's completions are 16 tokens without it"
        raise InvalidField("max_tokens", problem)
    if params.max_tokens is not None:
        name = options.max_tokens_name if is_chat else "max_tokens"
        found[name] = params.max_tokens
    if params.logprobs is not None:
        count = {"top_logprobs": params.logprobs} if params.logprobs else {}
        found |= {"logprobs": True, **count} if is_chat else {"logprobs": params.logprobs}
    if params.seed is not None and "seed" in found and params.seed > _MOST_SIGNED:
        found["seed"] = params.seed - 2**64  # as it is signed there
    return found


def _given(params: SamplingParams) -> Iterator[tuple[str, Any]]:
    """The parameters that differ from their defaults, and change something."""
    for name, row in SAMPLING.items():
        value = getattr(params, name)
        is_default = value == row.default or (not value and not row.default)
        if is_default or name in ("max_tokens", "logprobs", "temperature"):
            continue
        if params.temperature == 0 and name in _DRAWING:
            continue
        if name == "include_stop" and not params.stop:
            continue
        if name == "xtc_threshold" and not params.xtc_probability:
            continue
        yield name, value


def _extensions(request: Generate, options: UpstreamOptions) -> dict[str, Any]:
    """What OpenAI's API does not have."""
    given = {
        "truncate": ("truncate_prompt_tokens", request.truncate),
        "cache_salt": ("cache_salt", request.cache_salt),
        "priority": ("priority", request.priority),
        "chat_template": ("chat_template", request.chat_template),
        "add_special": ("add_special_tokens", None if request.add_special else False),
    }
    found = {}
    for name, (field, value) in given.items():
        if value is None or (name != "add_special" and not value):
            continue
        _refuse_unless(options.has_extensions, name, value, options)
        found[field] = value
    if request.has_prompt_tokens:
        raise InvalidField("has_prompt_tokens", text="an upstream does not give prompts' tokens")
    if request.has_tokens and options.has_extensions:
        found["return_token_ids"] = True
    return found


def _form(grammar: Grammar | None, options: UpstreamOptions) -> dict[str, Any]:
    if grammar is None:
        return {}
    if grammar.kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if grammar.kind == "json_schema":
        try:
            schema = json.loads(grammar.source)
        except (ValueError, RecursionError) as error:
            raise InvalidField("grammar", f"is no JSON schema: {error}") from None
        form = {"name": "answer", "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": form}}
    _refuse_unless(options.has_extensions, "grammar", grammar.kind, options)
    name = "grammar" if grammar.kind == "lark" else grammar.kind
    return {"structured_outputs": {name: grammar.source}}


def _tools(request: Generate) -> dict[str, Any]:
    if not request.tools:
        return {}
    choice: ToolChoice = request.tool_choice
    found: dict[str, Any] = {"tools": request.tools, "tool_choice": choice.mode}
    if choice.name is not None:
        found["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    return found if choice.parallel else {**found, "parallel_tool_calls": False}


def _template(request: Generate, options: UpstreamOptions) -> dict[str, Any]:
    """The variables of the chat template."""
    given = dict(request.template_options)
    found = {name: given.pop(name) for name in _OWN_FIELDS if name in given}
    if "reasoning_effort" in found and not options.has_extensions:
        given.pop("enable_thinking", None)  # which the effort stands for
        given.pop("thinking", None)
    others = found.keys() - {"reasoning_effort"}
    for name in (*others, *given):
        value = request.template_options[name]
        _refuse_unless(options.has_extensions, "template_options", {name: value}, options)
    return {**found, "chat_template_kwargs": given} if given else found


def _refuse_unless(is_known: bool, name: str, value: object, options: UpstreamOptions) -> None:
    if not is_known:
        has = f"the upstream (dialect {options.dialect}) has nothing for it"
        raise InvalidField(name, f"is {value!r}, but {has}")


def _to_messages(
    messages: list[dict[str, Any]], options: UpstreamOptions
) -> Iterator[dict[str, Any]]:
    """Arguments of calls as text, and each call with an id that its answer has."""
    open_ids: list[str] = []  # of calls that have no answer yet
    count = 0
    for message in messages:
        found = dict(message)
        if not options.has_extensions:
            found.pop("reasoning_content", None)
        calls = []
        for call in found.get("tool_calls") or ():
            count += 1
            call_id = call.get("id") or f"call_{count}"
            calls.append({**call, "id": call_id, "function": _function(call["function"])})
            open_ids.append(call_id)
        if calls:
            found["tool_calls"] = calls
        if found.get("role") == "tool":
            found.pop("name", None)
            given = found.get("tool_call_id") or (open_ids[0] if open_ids else "")
            found["tool_call_id"] = given
            open_ids = [one for one in open_ids if one != given]
        yield found


def _function(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments", {})
    is_text = isinstance(arguments, str)
    text = arguments if is_text else msgspec.json.encode(arguments).decode()
    return {**function, "arguments": text}
