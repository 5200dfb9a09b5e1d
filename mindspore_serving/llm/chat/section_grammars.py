"""Grammar rules for calls of formats whose calls share one pair of markers, and of Gemma's.

Each special token is a rule of its own, so that it matches as a token.  Pure: knows no tokens and
no requests.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mindspore_serving.llm.chat.gemma_calls import CALL, QUOTE
from mindspore_serving.llm.chat.parameter_types import length_range, types_of
from mindspore_serving.llm.chat.python_calls import CALL as FENCED_CALL
from mindspore_serving.llm.chat.python_calls import FENCE
from mindspore_serving.llm.chat.tool_formats import NamedCall, ToolFormat, invalid_tools

Functions = Sequence[tuple[str, Mapping[str, Any]]]  # names and schemas of arguments
_SHARED = ("$defs", "definitions", "x-guidance")  # copied from the schema to each parameter
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PYTHON_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_MAX_DEPTH = 5  # of nested objects and lists whose members a grammar names


def section_rule(row: ToolFormat, max_more: int) -> list[str]:
    """Return the rule `inside`: what follows the first marker, with up to `max_more` + 1 calls."""
    if row.syntax == "chatglm":  # the end token follows a call
        return ["inside: call", "list: call"]
    if row.is_list or row.syntax == "python":
        first = "first" if row.syntax else '"[" SPACE call'
        more = f'(SPACE "," SPACE call){{0,{max_more}}}' if max_more else ""
        inside = f"list {'SPACE end' if row.end else ''}".strip()
        rules = [f"inside: {inside}", f'list: SPACE {first} {more} SPACE "]"']
    else:
        more = f"(SPACE call){{0,{max_more}}}" if max_more else ""
        rules = [f"inside: SPACE call {more} SPACE end"]
    return [*rules, *[f"end: {_text(row.end)}"] * bool(row.end)]


def call_rules(row: ToolFormat, functions: Functions) -> list[str]:
    """Return the rule `call`, with one alternative for each function.

    Raises InvalidField for a name that cannot be written in the format.
    """
    rules = ["call: " + " | ".join(f"call_{index}" for index in range(len(functions)))]
    if row.named is not None:
        return [*rules, *_named(row.named, functions)]
    if row.syntax == "python":
        return [*rules, *_python(functions)]
    if row.syntax == "chatglm":
        return [*rules, *_fenced(functions)]
    return [*rules, *_gemma(functions)]


def _named(named: NamedCall, functions: Functions) -> Iterator[str]:
    sequences = {"before": named.before, "between": named.between, "after": named.after}
    for rule, texts in sequences.items():
        names = [f"{rule}_{index}" for index in range(len(texts))]
        yield f"{rule}: {' '.join(names)}"
        yield from (f"{name}: {_text(text)}" for name, text in zip(names, texts, strict=True))
    for index, (name, schema) in enumerate(functions):
        number = " NUMBER" if named.is_numbered else ""
        yield f"call_{index}: before {_text(name)}{number} between args_{index} after"
        yield f"args_{index}: %json {json.dumps(schema)}"
    if named.is_numbered:
        yield "NUMBER: /:[0-9]{1,4}/"


def _python(functions: Functions) -> Iterator[str]:
    """Iterate over rules of calls; `first` is a call and the "[" before it.

    They are one text, since a lexer could not tell a "[" alone from other text.
    """
    yield "first: " + " | ".join(f"first_{index}" for index in range(len(functions)))
    for index, (name, schema) in enumerate(functions):
        _check_name(name, _PYTHON_NAME)
        yield f'call_{index}: {_text(f"{name}(")} a_{index}_0 ")"'
        yield f'first_{index}: {_text(f"[{name}(")} a_{index}_0 ")"'
        yield from _members(f"a_{index}", "=", schema, _python_value)


def _fenced(functions: Functions) -> Iterator[str]:
    yield f"BEGIN: / ?{FENCE}\\n{re.escape(FENCED_CALL)}/"
    for index, (name, schema) in enumerate(functions):
        _check_name(name, _PYTHON_NAME)
        line, end = _text(f"{name}\n"), _text(")\n```")
        yield f"call_{index}: {line} BEGIN a_{index}_0 {end}"
        yield from _members(f"a_{index}", "=", schema, _python_value)


def _python_value(rule: str, schema: object, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    types = types_of(schema, root)
    words = {"boolean": '"True" | "False"', "null": '"None"'}
    if types and types <= set(words):
        yield f"{rule}: {' | '.join(words[each] for each in sorted(types))}"
    else:
        yield f"{rule}: %json {json.dumps(_with_shared(schema, root))}"


def _gemma(functions: Functions) -> Iterator[str]:
    for index, (name, schema) in enumerate(functions):
        _check_name(name, _PYTHON_NAME)
        yield f'call_{index}: {_text(f"{CALL}{name}" + "{")} a_{index}_0 "}}"'
        yield from _members(f"a_{index}", ":", schema, _gemma_value)
    yield f"quote: {_text(QUOTE)}"
    yield f"text[suffix={_text(QUOTE)}]: TEXT_OF_VALUE"
    yield "TEXT_OF_VALUE: /(?s:.*)/"
    yield 'scalar: /-?[0-9]+(\\.[0-9]+)?([eE][+-]?[0-9]+)?/ | "true" | "false" | "null"'
    yield "any: quote text | scalar"


def _gemma_value(rule: str, schema: object, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    types = types_of(schema, root)
    stated = schema if isinstance(schema, Mapping) else {}
    values = stated.get("enum")
    if isinstance(values, list) and all(isinstance(value, str) for value in values):
        yield f"{rule}: quote ({' | '.join(map(_text, values))}) quote"
    elif types == {"string"} and (length := length_range(schema)):
        yield f"{rule}_t[suffix={_text(QUOTE)}]: {rule.upper()}_T"
        yield f"{rule.upper()}_T: /(?s:.{{%d,%d}})/" % length
        yield f"{rule}: quote {rule}_t"
    elif types == {"string"}:
        yield f"{rule}: quote text"
    elif types == {"object"} and stated.get("properties") and depth < _MAX_DEPTH:
        yield f'{rule}: "{{" {rule}_0 "}}"'
        nested = _with_shared(stated, root)
        yield from _members(rule, ":", nested, _gemma_value, depth + 1)
    elif types == {"array"} and depth < _MAX_DEPTH:
        yield f'{rule}: "[" ({rule}_i ("," {rule}_i)*)? "]"'
        yield from _gemma_value(f"{rule}_i", stated.get("items"), root, depth + 1)
    elif types <= {"number", "integer", "boolean", "null"}:
        yield f"{rule}: %json {json.dumps(_with_shared(schema, root))}"
    else:
        yield f"{rule}: any"


def _members(
    rule: str, colon: str, schema: Mapping[str, Any], value: Any, depth: int = 0
) -> Iterator[str]:
    """Iterate over rules of the members of an object, in the order of its schema.

    Rules with a number are for an object without members so far, those with "more" for others.
    """
    properties = list((schema.get("properties") or {}).items())
    required = schema.get("required") or ()
    for index, (key, parameter) in enumerate(properties):
        _check_name(key, _IDENTIFIER)
        member = f"{_text(f'{key}{colon}')} {rule}_v{index} {rule}_{index + 1}_more"
        is_needed = key in required
        yield f"{rule}_{index}: {member}" + (f" | {rule}_{index + 1}" * (not is_needed))
        yield f"{rule}_{index}_more: COMMA {member}" + (
            f" | {rule}_{index + 1}_more" * (not is_needed)
        )
        yield from value(f"{rule}_v{index}", parameter, schema, depth)
    yield f'{rule}_{len(properties)}: ""'
    yield f'{rule}_{len(properties)}_more: ""'


def _with_shared(schema: Any, root: Mapping[str, Any]) -> Any:
    shared = {name: root[name] for name in _SHARED if name in root}
    return {**shared, **schema} if isinstance(schema, Mapping) else schema


def _check_name(name: str, pattern: re.Pattern[str]) -> None:
    if not pattern.fullmatch(name):
        raise invalid_tools(
            f"the name {name!r} of a tool or parameter cannot be written in this model's calls: "
            "expected letters, digits and underscores"
        )


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
