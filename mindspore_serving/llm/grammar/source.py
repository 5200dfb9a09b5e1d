"""Grammars as texts: what a compiler is given, and special tokens in Lark.

Pure text: it knows neither llguidance nor a tokenizer.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import InvalidInputs

# On one line, with at most a space behind "," and ":", as most models have learnt to write.
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}

_NO_FORCING = '%llguidance {"no_forcing": true}'
_LITERAL = r'"(?:[^"\\\n]|\\.)*"'
_ONLY = re.compile(rf"^(\s*[a-z_][\w-]*\s*:\s*)({_LITERAL})\s*$")
_SUFFIX = re.compile(rf"^(\s*[a-z_][\w-]*)\s*\[\s*suffix\s*=\s*({_LITERAL})\s*\](\s*:.*)$")
# Where a quote or slash has no other behind it, the line ends with it: none is looked at twice.
_PIECES = re.compile(
    rf"{_LITERAL}?|//[^\n]*|\#[^\n]*|/(?:[^/\\\n]|\\.)+/?|(?<![\w$%-])start(?![\w-])", re.VERBOSE
)


def spacing(schema: str) -> dict[str, Any]:
    """Where JSON of `schema` may have spaces, unless its "x-guidance" says it: no more than it
    needs, for a model that is at a loss writes spaces until it is cut.
    """
    return {} if "whitespace_flexible" in schema else dict(_COMPACT)


def place_special_tokens(lark: str, special_ids: Mapping[str, int]) -> str:
    """`lark` with special tokens where it spells them.

    A rule that is nothing but the text of a special token, `name: "<|python_tag|>"`, is that
    token, and a rule with such a text as its suffix, `name[suffix="</think>"]: TEXT`, ends with
    it.  In a vocabulary where the text is no special token it stays text.  So one grammar serves
    all models.
    """
    return "\n".join(_place(line, special_ids) for line in lark.split("\n"))


def _place(line: str, special_ids: Mapping[str, int]) -> str:
    if found := _ONLY.match(line):
        token_id = _token_id(found[2], special_ids)
        return line if token_id is None else f"{found[1]}<[{token_id}]>"
    if found := _SUFFIX.match(line):
        token_id = _token_id(found[2], special_ids)
        return line if token_id is None else f"{found[1]}{found[3]} <[{token_id}]>"
    return line


def _token_id(literal: str, special_ids: Mapping[str, int]) -> int | None:
    try:
        return special_ids.get(json.loads(literal))
    except ValueError:
        return None


def forbid_forcing(source: str) -> str:
    """The `source` for llguidance, as Lark or JSON, without looking for texts that are forced.
    Raises ValueError or RecursionError for JSON that is no grammar.
    """
    if not source.lstrip().startswith("{"):
        return f"{source}\n{_NO_FORCING}"
    try:
        inner = json.loads(source)["grammars"]
        name = inner[0].setdefault("name", "inner")
    except (LookupError, TypeError, AttributeError):
        raise ValueError("JSON that is no grammar") from None
    for one in inner:
        if one.get("lark_grammar"):  # of several such lines the last counts
            one["lark_grammar"] += f"\n{_NO_FORCING}"
    outer = {"name": "outer", "lark_grammar": f"start: @{name}\n{_NO_FORCING}"}
    return json.dumps({"grammars": [outer, *inner]})


def rename_start(lark: str, name: str) -> str:
    """`lark` with its rule `start` named `name`."""
    return _PIECES.sub(lambda found: name if found[0] == "start" else found[0], lark)


def regex_literal(regex: str) -> str:
    """A regular expression between slashes, as Lark has it."""
    escaped = re.sub(r"\\.|/|\n", _escape, regex, flags=re.DOTALL)
    return f"/{escaped}/" if escaped else '""'


def answer_rule(grammar: Grammar, name: str) -> str:
    """Lark with a rule `name` that stands for `grammar`.  Raises InvalidInputs for a JSON schema
    that is not JSON.
    """
    if grammar.kind == "lark":
        return rename_start(grammar.source, name)
    if grammar.kind == "regex":
        return f"{name}: {regex_literal(grammar.source)}\n"
    schema: Any = {"type": "object"}
    if grammar.kind == "json_schema":
        try:
            schema = json.loads(grammar.source)
        except (ValueError, RecursionError) as error:
            raise InvalidInputs(f"the json_schema is not JSON: {error}") from None
        if schema is True:
            schema = {}
    if not isinstance(schema, dict):
        raise InvalidInputs(f"the json_schema is {grammar.source[:80]!r}, expected an object")
    options: dict[str, Any] = {**spacing(grammar.source)}
    stated = schema.get("x-guidance")
    options |= stated if isinstance(stated, dict) else {}
    return f"{name}: %json {json.dumps({**schema, 'x-guidance': options})}\n"


def _escape(found: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}.get(found[0], found[0])
