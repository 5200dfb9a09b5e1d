"""Grammar rules for calls of tools whose arguments are tags: Qwen3-Coder's and GLM's.

Pure text: it knows no tokens and no requests.  Parameters come in the order of the schema.  A text
has no quotes, so any text up to the tag behind it is one: of what a schema says about texts, values
that are listed are respected, and others refused for a tool that is `strict`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mindspore_serving.llm.chat.parameter_types import may_be_text, types_of
from mindspore_serving.llm.chat.tool_formats import Tags, wrong_tools

_OF_TEXTS = ("pattern", "format", "minLength", "maxLength")
_SHARED = ("$defs", "definitions", "x-guidance")  # of the whole schema, for each parameter


def tagged_rules(
    tags: Tags, functions: Sequence[tuple[str, dict[str, Any]]], strict: frozenset[str]
) -> list[str]:
    """The rule `call`, for functions by name and schema; `strict` are names of them.

    Raises InvalidField for names that have no place in tags, and for what is strict and cannot be.
    """
    rules = ["call: " + " | ".join(f"call_{index}" for index in range(len(functions)))]
    for index, (name, schema) in enumerate(functions):
        _check_name(name)
        parts = [_name(tags, name)]
        required = schema.get("required") or ()
        for number, (key, one) in enumerate((schema.get("properties") or {}).items()):
            _check_name(key)
            if name in strict:
                _check_strict(name, key, one)
            rule = f"p_{index}_{number}"
            parts.append(rule if key in required else f"{rule}?")
            rules.append(f"{rule}: {_key(tags, key)} v_{index}_{number}")
            rules += _value(tags, f"v_{index}_{number}", one, schema)
        parts += [json.dumps(tags.end)] * bool(tags.end)
        rules.append(f"call_{index}: {' '.join(parts)}")
    return [*rules, *_markers(tags)]


def _name(tags: Tags, name: str) -> str:
    before, behind = tags.name
    return f"{json.dumps(before + name + behind, ensure_ascii=False)} LINE"


def _key(tags: Tags, key: str) -> str:
    shown = json.dumps(key, ensure_ascii=False)
    line = json.dumps("\n") if tags.has_lines else ""
    value = "value_begin" if tags.value[0] else ""
    return f"key_begin {shown} key_end {line or 'LINE'} {value}".rstrip()


def _value(tags: Tags, rule: str, one: object, schema: Mapping[str, Any]) -> Iterator[str]:
    types = types_of(one, schema)
    listed = one.get("enum") if isinstance(one, Mapping) else None
    line = f"{json.dumps(chr(10))} " * tags.has_lines
    if not may_be_text(types):
        shared = {name: schema[name] for name in _SHARED if name in schema}
        inner = {**shared, **one} if isinstance(one, Mapping) else one
        yield f"{rule}: json_{rule} {line}value_end LINE"
        yield f"json_{rule}: %json {json.dumps(inner)}"
    elif isinstance(listed, list) and all(isinstance(value, str) for value in listed):
        texts = " | ".join(json.dumps(value, ensure_ascii=False) for value in listed)
        yield f"{rule}: ({texts}) {line}value_end LINE"
    else:
        yield f"{rule}: text LINE"


def _markers(tags: Tags) -> list[str]:
    """Rules of their own, so that special tokens match."""
    begin = tags.value[0]
    end = json.dumps("\n" * tags.has_lines + tags.value[1])
    return [
        f"text[suffix={end}]: VALUE",
        "VALUE: /(?s:.*)/",
        "LINE: /\\n?/",
        f"key_begin: {json.dumps(tags.key[0])}",
        f"key_end: {json.dumps(tags.key[1])}",
        *[f"value_begin: {json.dumps(begin)}"] * bool(begin),
        f"value_end: {json.dumps(tags.value[1])}",
    ]


def _check_name(name: str) -> None:
    if not name.isprintable() or set(name) & set("<>"):
        raise wrong_tools(
            f"{name!r} is the name of a tool or of a parameter, expected one without < and >: this "
            "model writes calls as tags"
        )


def _check_strict(name: str, key: str, one: object) -> None:
    found = [word for word in _OF_TEXTS if isinstance(one, Mapping) and word in one]
    if found and may_be_text(types_of(one, {})):
        raise wrong_tools(
            f"parameter {key!r} of the strict tool {name!r} has {found[0]!r}, which texts of this "
            "model, that are written without quotes, cannot follow"
        )
