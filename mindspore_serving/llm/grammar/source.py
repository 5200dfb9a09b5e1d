"""Sources of grammars: what a compiler gets, and special tokens in Lark.

Pure text: knows neither llguidance nor a tokenizer.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import InvalidInputs

_LARGE = 64 * 1024  # characters
# JSON on one line, with at most a space after "," and ":", as most models have learnt to write it.
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}

_NO_FORCING = '%llguidance {"no_forcing": true}'
_LITERAL = r'"(?:[^"\\\n]|\\.)*"'
_ONLY = re.compile(rf"^(\s*[a-z_][\w-]*\s*:\s*)({_LITERAL})\s*$")
_SUFFIX = re.compile(rf"^(\s*[a-z_][\w-]*)\s*\[\s*suffix\s*=\s*({_LITERAL})\s*\](\s*:.*)$")
# An unpaired quote or slash matches up to the end of its line, so the scan stays linear.
_PIECES = re.compile(
    rf"{_LITERAL}?|//[^\n]*|\#[^\n]*|/(?:[^/\\\n]|\\.)+/?|(?<![\w$%-])start(?![\w-])", re.VERBOSE
)


def is_large(grammar: Grammar) -> bool:
    """Return whether compiling `grammar` may take a second; smaller ones do not wait for it."""
    return len(grammar.source) > _LARGE


def whitespace_options(schema: str) -> dict[str, Any]:
    """Return the whitespace options for JSON of `schema`, none if its "x-guidance" has them.

    Only the necessary whitespace is allowed: an undecided model writes spaces until its token
    limit.
    """
    return {} if "whitespace_flexible" in schema else dict(_COMPACT)


def insert_special_tokens(lark: str, special_ids: Mapping[str, int]) -> str:
    """Replace special tokens that `lark` spells as text.

    A rule that consists of the text of a special token, `name: "<|python_tag|>"`, becomes that
    token, and a rule with such a text as its suffix, `name[suffix="</think>"]: TEXT`, ends with it.
    Where the vocabulary has no such special token it stays text, so one grammar serves all models.
    """
    return "\n".join(_insert(line, special_ids) for line in lark.split("\n"))


def _insert(line: str, special_ids: Mapping[str, int]) -> str:
    if match := _ONLY.match(line):
        token_id = _token_id(match[2], special_ids)
        return line if token_id is None else f"{match[1]}<[{token_id}]>"
    if match := _SUFFIX.match(line):
        token_id = _token_id(match[2], special_ids)
        return line if token_id is None else f"{match[1]}{match[3]} <[{token_id}]>"
    return line


def _token_id(literal: str, special_ids: Mapping[str, int]) -> int | None:
    try:
        return special_ids.get(json.loads(literal))
    except ValueError:
        return None


def disable_forcing(source: str) -> str:
    """Return `source` (Lark or JSON) with llguidance's search for forced tokens disabled.

    Raises ValueError or RecursionError for JSON that is no grammar.
    """
    if not source.lstrip().startswith("{"):
        return f"{source}\n{_NO_FORCING}"
    try:
        inner = json.loads(source)["grammars"]
        name = inner[0].setdefault("name", "inner")
    except (LookupError, TypeError, AttributeError):
        raise ValueError("its JSON is no grammar") from None
    for part in inner:
        if part.get("lark_grammar"):  # the last of several %llguidance lines counts
            part["lark_grammar"] += f"\n{_NO_FORCING}"
    outer = {"name": "outer", "lark_grammar": f"start: @{name}\n{_NO_FORCING}"}
    return json.dumps({"grammars": [outer, *inner]})


def rename_start(lark: str, name: str) -> str:
    """Rename the rule `start` of `lark` to `name`."""
    return _PIECES.sub(lambda match: name if match[0] == "start" else match[0], lark)


def regex_literal(regex: str) -> str:
    """Return a regular expression between slashes, as Lark writes it."""
    escaped = re.sub(r"\\.|/|\n", _escape, regex, flags=re.DOTALL)
    return f"/{escaped}/" if escaped else '""'


def answer_rule(grammar: Grammar, name: str) -> str:
    """Return Lark with a rule `name` that stands for `grammar`.

    Raises InvalidInputs for a JSON schema that is not JSON.
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
    options: dict[str, Any] = {**whitespace_options(grammar.source)}
    stated = schema.get("x-guidance")
    options |= stated if isinstance(stated, dict) else {}
    return f"{name}: %json {json.dumps({**schema, 'x-guidance': options})}\n"


def _escape(match: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}.get(match[0], match[0])
