"""Requests in the form of the other server; a field without a counterpart is refused by name."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from mindspore_serving.core.llm_messages import BACKGROUND, Generate, Grammar, ToolChoice
from mindspore_serving.core.sampling_params import SAMPLING, SamplingParams
from mindspore_serving.errors import InvalidField
from mindspore_serving.llm.upstream.options import UpstreamOptions

CHAT, COMPLETIONS = "/chat/completions", "/completions"
_MAX_SIGNED = 2**63 - 1
_WITHOUT_EFFECT_IF_GREEDY = frozenset({
    "seed", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "xtc_probability",
    "xtc_threshold",
})  # fmt: skip
"""Parameters without effect on greedy sampling."""
_ALWAYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Parameters sent even at their defaults: the server would use the model's recommendation."""
_TOP_LEVEL_FIELDS = (
    "add_generation_prompt",
    "continue_final_message",
    "documents",
    "reasoning_effort",
)


def to_body(request: Generate, model: str, options: UpstreamOptions) -> tuple[str, bytes]:
    """Return the path and the JSON body of a streamed request.  Raises InvalidField."""
    is_chat = request.messages is not None
    body: dict[str, Any] = {"model": model, "stream": True}
    body["stream_options"] = {"include_usage": True}
    if options.dialect == "vllm":
        body["stream_options"]["continuous_usage_stats"] = True
    body |= _sampling(request.params, options, is_chat=is_chat)
    body |= _extensions(request, options)
    body |= _response_format(request.grammar, options)
    if is_chat:
        body["messages"] = [*_to_messages(request.messages or [], options)]
        body |= _tools(request) | _template(request, options)
        return CHAT, msgspec.json.encode(body)
    body["prompt"] = request.prompt
    if request.files:
        raise InvalidField(
            "files", "is set, expected none: the upstream's completions take no files"
        )
    if request.suffix is not None:
        body["suffix"] = request.suffix
    return COMPLETIONS, msgspec.json.encode(body)


def _sampling(params: SamplingParams, options: UpstreamOptions, *, is_chat: bool) -> dict[str, Any]:
    fields = {name: getattr(params, name) for name in _ALWAYS if name in options.known}
    for name, value in _changed(params):
        if name not in options.known:
            reason = f"the upstream (dialect {options.dialect}) has no such parameter"
            raise InvalidField(name, f"is {value!r}, but {reason}")
        fields[SAMPLING[name].aliases["openai"] or name] = value
    if params.max_tokens is None and not is_chat:
        problem = "is not set, but the upstream's completions end after 16 tokens without it"
        raise InvalidField("max_tokens", problem)
    if params.max_tokens is not None:
        name = options.max_tokens_name if is_chat else "max_tokens"
        fields[name] = params.max_tokens
    if params.logprobs is not None:
        count = {"top_logprobs": params.logprobs} if params.logprobs else {}
        fields |= {"logprobs": True, **count} if is_chat else {"logprobs": params.logprobs}
    if params.seed is not None and "seed" in fields and params.seed > _MAX_SIGNED:
        fields["seed"] = params.seed - 2**64  # a signed integer there
    return fields


def _changed(params: SamplingParams) -> Iterator[tuple[str, Any]]:
    """Iterate over the parameters that differ from their defaults and have an effect."""
    for name, row in SAMPLING.items():
        value = getattr(params, name)
        is_default = value == row.default or (not value and not row.default)
        if is_default or name in ("max_tokens", "logprobs", "temperature"):
            continue
        if params.temperature == 0 and name in _WITHOUT_EFFECT_IF_GREEDY:
            continue
        if name == "include_stop" and not params.stop:
            continue
        if name == "xtc_threshold" and not params.xtc_probability:
            continue
        if name in ("length_penalty", "early_stopping") and params.num_beams == 1:
            continue
        if name.startswith("dry_") and not params.dry_multiplier:
            continue
        if name.startswith("mirostat_") and not params.mirostat:
            continue
        yield name, value


def _extensions(request: Generate, options: UpstreamOptions) -> dict[str, Any]:
    """Return the fields that OpenAI's API does not have."""
    extensions = {
        "truncate": ("truncate_prompt_tokens", request.truncate),
        "cache_salt": ("cache_salt", request.cache_salt),
        "priority": ("priority", request.priority if request.priority < BACKGROUND else 0),
        "chat_template": ("chat_template", request.chat_template),
        "add_special": ("add_special_tokens", None if request.add_special else False),
    }
    fields = {}
    for name, (field, value) in extensions.items():
        if value is None or (name != "add_special" and not value):
            continue
        _refuse_unless(options.has_extensions, name, value, options)
        fields[field] = value
    if request.has_prompt_tokens:
        raise InvalidField("has_prompt_tokens", text="an upstream does not return prompt tokens")
    if request.has_tokens and options.has_extensions:
        fields["return_token_ids"] = True
    return fields


def _response_format(grammar: Grammar | None, options: UpstreamOptions) -> dict[str, Any]:
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
    if grammar.kind == "structural_tag":
        return {"response_format": {"type": grammar.kind, **json.loads(grammar.source)}}
    name = "grammar" if grammar.kind in ("lark", "gbnf") else grammar.kind
    return {"structured_outputs": {name: grammar.source}}


def _tools(request: Generate) -> dict[str, Any]:
    if not request.tools:
        return {}
    choice: ToolChoice = request.tool_choice
    fields: dict[str, Any] = {"tools": request.tools, "tool_choice": choice.mode}
    if choice.name is not None:
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    return fields if choice.parallel else {**fields, "parallel_tool_calls": False}


def _template(request: Generate, options: UpstreamOptions) -> dict[str, Any]:
    """Return the variables of the chat template."""
    variables = dict(request.template_options)
    fields = {name: variables.pop(name) for name in _TOP_LEVEL_FIELDS if name in variables}
    if "reasoning_effort" in fields and not options.has_extensions:
        variables.pop("enable_thinking", None)  # implied by the effort
        variables.pop("thinking", None)
    extensions = fields.keys() - {"reasoning_effort"}
    for name in (*extensions, *variables):
        value = request.template_options[name]
        _refuse_unless(options.has_extensions, "template_options", {name: value}, options)
    return {**fields, "chat_template_kwargs": variables} if variables else fields


def _refuse_unless(is_known: bool, name: str, value: object, options: UpstreamOptions) -> None:
    if not is_known:
        reason = f"the upstream (dialect {options.dialect}) does not support it"
        raise InvalidField(name, f"is {value!r}, but {reason}")


def _to_messages(
    messages: list[dict[str, Any]], options: UpstreamOptions
) -> Iterator[dict[str, Any]]:
    """Iterate over the messages with arguments of tool calls as text.

    Each call gets an id, to which its result refers.
    """
    open_ids: list[str] = []  # of calls without a result yet
    count = 0
    for message in messages:
        converted = dict(message)
        if not options.has_extensions:
            converted.pop("reasoning_content", None)
        calls = []
        for call in converted.get("tool_calls") or ():
            count += 1
            call_id = call.get("id") or f"call_{count}"
            calls.append({**call, "id": call_id, "function": _function(call["function"])})
            open_ids.append(call_id)
        if calls:
            converted["tool_calls"] = calls
        if converted.get("role") == "tool":
            converted.pop("name", None)
            result_of = converted.get("tool_call_id") or (open_ids[0] if open_ids else "")
            converted["tool_call_id"] = result_of
            open_ids = [call_id for call_id in open_ids if call_id != result_of]
        yield converted


def _function(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments", {})
    is_text = isinstance(arguments, str)
    text = arguments if is_text else msgspec.json.encode(arguments).decode()
    return {**function, "arguments": text}
