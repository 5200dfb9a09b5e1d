"""Custom tools, whose input is text: functions of one string for the model.

Knows no protocol: chats and responses write the calls in their own form.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from mindspore_serving.errors import InvalidField
from mindspore_serving.frontends.chat.fields import unexpected

_BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_TEXT = re.compile(  # whole characters of a JSON string; half a surrogate pair is none
    r'(?:[^"\\]+|\\["\\/bfnrt]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)
_SYNTAXES = ("lark", "regex")


class CustomGrammar(msgspec.Struct):
    """Grammar of a custom tool's input, in Lark's syntax or as a regular expression."""

    syntax: str
    definition: str


class CustomFormat(msgspec.Struct):
    """Format of a custom tool's input; a chat has an object `grammar` beside the type."""

    type: str = "text"
    syntax: str | None = None
    definition: str | None = None
    grammar: CustomGrammar | None = None


def to_schema(
    path: str, description: str | None, input_format: CustomFormat | None
) -> tuple[str | None, dict[str, Any]]:
    """Return description and parameters of the function that stands for a custom tool.

    Its only parameter is a string, `input`.

    The grammar engine holds the input to a regular expression. The model reads a grammar in
    Lark's syntax, which no JSON schema expresses, in the description.

    Raises InvalidField.
    """
    schema = {"type": "string"}
    grammar = _grammar(f"{path}.format", input_format or CustomFormat())
    if grammar is not None:
        if grammar.syntax == "regex":
            schema["pattern"] = f"^(?:{grammar.definition})$"
        rule = f"The input has to match this grammar ({grammar.syntax}):\n{grammar.definition}"
        description = f"{description}\n\n{rule}" if description else rule
    parameters = {"type": "object", "properties": {"input": schema}, "required": ["input"]}
    return description, {**parameters, "additionalProperties": False}


def _grammar(path: str, input_format: CustomFormat) -> CustomGrammar | None:
    if input_format.type == "text":
        return None
    if input_format.type != "grammar":
        raise unexpected(f"{path}.type", input_format.type, "text or grammar")
    grammar = input_format.grammar
    if grammar is None:
        if input_format.syntax is None or input_format.definition is None:
            name = "syntax" if input_format.syntax is None else "definition"
            raise InvalidField(f"{path}.{name}", "is missing")
        grammar = CustomGrammar(input_format.syntax, input_format.definition)
    if grammar.syntax not in _SYNTAXES:
        raise unexpected(f"{path}.syntax", grammar.syntax, " or ".join(_SYNTAXES))
    return grammar


def to_arguments(text: str) -> str:
    """Return the arguments of the function that stands for a custom tool, as JSON."""
    return json.dumps({"input": text}, ensure_ascii=False)


class InputReader:
    """Reads the input of a custom tool from the arguments of its function, piece by piece."""

    def __init__(self) -> None:
        self._held = ""
        self._part: Callable[[str], str] = self._before

    def feed(self, arguments: str) -> str:
        """Return the text that a piece of the arguments adds."""
        return self._part(self._held + arguments)

    def finish(self) -> str:
        """Return the arguments as they are if they have no `input`, else ""."""
        return self._held if self._part == self._before else ""

    def _before(self, arguments: str) -> str:
        begin = _BEGIN.match(arguments)
        if begin is None:
            self._held = arguments
            return ""
        self._part = self._inside
        return self._inside(arguments[begin.end() :])

    def _inside(self, arguments: str) -> str:
        match = _TEXT.match(arguments)
        assert match is not None  # it may be empty
        self._held = arguments[match.end() :]
        if self._held.startswith('"'):
            self._held, self._part = "", self._after
        text: str = json.loads(f'"{match[0]}"', strict=False)
        return text

    def _after(self, _: str) -> str:
        return ""
