"""Grammar rules for tool calls whose arguments are tags: Qwen3-Coder's, GLM's, DeepSeek V3.2's.

Parameters come in the order of the schema.  Strings have no quotes, so any text up to the next tag
is one.  Of a schema's constraints on strings, `enum` and small lengths are enforced; others are
refused for a `strict` tool and otherwise ignored.  Pure: knows no tokens and no requests.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mindspore_serving.llm.chat.parameter_types import length_range, may_be_text, types_of
from mindspore_serving.llm.chat.tool_formats import Tags, invalid_tools

_LENGTHS = ("minLength", "maxLength")
_SHARED = ("$defs", "definitions", "x-guidance")  # copied from the schema to each parameter


def tagged_rules(
    tags: Tags, functions: Sequence[tuple[str, dict[str, Any]]], strict: frozenset[str]
) -> list[str]:
    """Return the rule `call` for functions by name and schema; `strict` names the strict ones.

    Raises InvalidField for names that cannot be written as tags, and for constraints of a strict
    tool that cannot be enforced.
    """
    rules = ["call: " + " | ".join(f"call_{index}" for index in range(len(functions)))]
    for index, (name, schema) in enumerate(functions):
        _check_name(name)
        parts = [_name(tags, name)]
        required = schema.get("required") or ()
        for number, (key, schema_of_key) in enumerate((schema.get("properties") or {}).items()):
            _check_name(key)
            if name in strict:
                _check_strict(name, key, schema_of_key)
            rule = f"p_{index}_{number}"
            parts.append(rule if key in required else f"{rule}?")
            rules.append(f"{rule}: {_key(tags, key)} v_{index}_{number}")
            rules += _value(tags, f"v_{index}_{number}", schema_of_key, schema)
        parts += [json.dumps(tags.end)] * bool(tags.end)
        rules.append(f"call_{index}: {' '.join(parts)}")
    return [*dict.fromkeys(rules), *_markers(tags)]  # texts of one length have one rule


def _name(tags: Tags, name: str) -> str:
    before, after = tags.name
    return f"{json.dumps(before + name + after, ensure_ascii=False)} LINE"


def _key(tags: Tags, key: str) -> str:
    shown = json.dumps(key, ensure_ascii=False)
    if tags.is_typed:
        return f"key_begin {shown}"
    line = json.dumps("\n") if tags.has_lines else ""
    value = "value_begin" if tags.value[0] else ""
    return f"key_begin {shown} key_end {line or 'LINE'} {value}".rstrip()


def _value(tags: Tags, rule: str, parameter: object, schema: Mapping[str, Any]) -> Iterator[str]:
    """Iterate over the rules of a value: JSON, one of the listed strings, or any text."""
    types = types_of(parameter, schema)
    enum = parameter.get("enum") if isinstance(parameter, Mapping) else None
    line = f"{json.dumps(chr(10))} " * tags.has_lines
    as_text, as_json = ("is_text ", "is_json ") if tags.is_typed else ("", "")
    may_be_json = not may_be_text(types) or (tags.is_typed and types != {"string"})
    forms = [f"{as_json}json_{rule} {line}value_end LINE"] * may_be_json
    if may_be_json:
        shared = {name: schema[name] for name in _SHARED if name in schema}
        inner = {**shared, **parameter} if isinstance(parameter, Mapping) else parameter
        yield f"json_{rule}: %json {json.dumps(inner)}"
    if isinstance(enum, list) and all(isinstance(value, str) for value in enum):
        texts = " | ".join(json.dumps(value, ensure_ascii=False) for value in enum)
        forms = [f"{as_text}({texts}) {line}value_end LINE"]
    elif may_be_text(types):
        length = length_range(parameter) if types == {"string"} else None
        name = "text"
        if length is not None:
            name = f"text_{length[0]}_{length[1]}"
            yield from _bounded_text(tags, *length)
        forms.append(f"{as_text}{name} LINE")
    yield f"{rule}: {' | '.join(forms)}"


def _bounded_text(tags: Tags, low: int, high: int) -> Iterator[str]:
    yield f"text_{low}_{high}[suffix={_text_end(tags)}]: VALUE_{low}_{high}"
    yield f"VALUE_{low}_{high}: /(?s:.{{{low},{high}}})/"


def _text_end(tags: Tags) -> str:
    return json.dumps("\n" * tags.has_lines + tags.value[1])


def _markers(tags: Tags) -> list[str]:
    """Return a rule for each marker, so that special tokens match."""
    begin, key_end = tags.value[0], tags.key[1]
    return [
        f"text[suffix={_text_end(tags)}]: VALUE",
        "VALUE: /(?s:.*)/",
        "LINE: /\\n?/",
        f"key_begin: {json.dumps(tags.key[0])}",
        f"key_end: {json.dumps(key_end)}",
        *[f"is_text: {_typed('true', key_end)}", f"is_json: {_typed('false', key_end)}"]
        * tags.is_typed,
        *[f"value_begin: {json.dumps(begin)}"] * bool(begin),
        f"value_end: {json.dumps(tags.value[1])}",
    ]


def _typed(word: str, key_end: str) -> str:
    return json.dumps(f'" string="{word}{key_end}')


def _check_name(name: str) -> None:
    if not name.isprintable() or set(name) & set("<>"):
        raise invalid_tools(
            f"the name {name!r} of a tool or parameter has <, > or an unprintable character, which "
            "cannot be written in this model's tags"
        )


def _check_strict(name: str, key: str, parameter: object) -> None:
    schema = parameter if isinstance(parameter, Mapping) else {}
    lengths = _LENGTHS if length_range(schema) is None else ()
    unsupported = [word for word in ("pattern", "format", *lengths) if word in schema]
    if unsupported and may_be_text(types_of(parameter, {})):
        raise invalid_tools(
            f"parameter {key!r} of the strict tool {name!r} has {unsupported[0]!r}, which cannot "
            "be enforced: this model writes strings without quotes"
        )
