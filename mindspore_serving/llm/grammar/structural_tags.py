"""Structural tags as Lark: free text in which a tag, once its trigger is written, holds a schema.

The form is that of vLLM and SGLang: `structures` with `begin`, `schema` and `end`, and `triggers`,
one of which begins each `begin`.  Knows neither a tokenizer nor a compiler.
"""

import json
from typing import Any

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.grammar.source import answer_rule


def to_lark(source: str) -> str:
    """Return the tags in the JSON `source` as Lark.

    Raises InvalidInputs.
    """
    try:
        tags = json.loads(source)
        structures = [(tag["begin"], tag["schema"], tag["end"]) for tag in tags["structures"]]
        triggers = [str(trigger) for trigger in tags["triggers"]]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        expected = "expected structures (begin, schema, end) and triggers"
        raise InvalidInputs(f"the structural_tag cannot be read ({error}), {expected}") from None
    by_trigger: dict[str, list[str]] = {}
    rules = ["TEXT: /(?s:.*)/"]
    for index, (begin, schema, end) in enumerate(structures):
        trigger = _trigger_of(begin, triggers)
        parts = [f"schema_{index}"]
        if begin != trigger:
            parts.insert(0, _quoted(begin[len(trigger) :]))
        if end:  # in a rule of its own, where it may be a special token
            rules.append(f"end_{index}: {_quoted(end)}")
            parts.append(f"end_{index}")
        by_trigger.setdefault(trigger, []).append(" ".join(parts))
        rules.append(answer_rule(_schema(schema), f"schema_{index}"))
    tags_of = []
    for number, (trigger, bodies) in enumerate(by_trigger.items()):
        rules.append(f"trigger_{number}[suffix={_quoted(trigger)}]: TEXT")
        tags_of.append(f"trigger_{number} ({' | '.join(bodies)})")
    return "\n".join(["start: tag* tail", "tail: TEXT", f"tag: {' | '.join(tags_of)}", *rules, ""])


def _trigger_of(begin: Any, triggers: list[str]) -> str:
    """Return the longest of `triggers` that begins `begin`."""
    matching = [each for each in triggers if each and str(begin).startswith(each)]
    if not matching:
        accepted = ", ".join(map(repr, triggers[:8])) or "none are set"
        raise InvalidInputs(f"the begin {begin!r} has no trigger, expected one of: {accepted}")
    return max(matching, key=len)


def _schema(schema: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(schema))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
