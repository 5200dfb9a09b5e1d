"""YAML of an operator's files: limited depth, no duplicate keys, errors with the line.

It imports PyYAML, which not every worker's environment has: import it where it is used.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.scanner import ScannerError

from mindspore_serving.errors import InvalidInputs

_MAX_BRACKETS = 16  # max open brackets; no option needs over four
_TOO_DEEP = "it is nested too deeply"
_ENDLESS = "it is a part of itself"
# Errors of PyYAML's constructors for a value that does not fit its tag.
_WRONG = (ValueError, LookupError, AttributeError, TypeError, ArithmeticError)


class Loader(yaml.SafeLoader):
    """PyYAML's loader with limits.

    It refuses over 16 open brackets, integers of over 64 bits, duplicate keys, and values that
    contain themselves.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._open_anchors: list[str | None] = []

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        """Limit open brackets: PyYAML looks at all of them for each token."""
        if self.flow_level == _MAX_BRACKETS:
            raise ScannerError(None, None, _TOO_DEEP, self.get_mark())
        super().fetch_flow_collection_start(TokenClass)

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        anchor, mark = event.anchor, event.start_mark
        if isinstance(event, yaml.AliasEvent):
            if anchor in self._open_anchors:
                raise ComposerError(None, None, _ENDLESS, mark)
            return super().compose_node(parent, index)
        self._open_anchors.append(anchor)
        node = super().compose_node(parent, index)
        self._open_anchors.pop()
        return node

    def construct_yaml_int(self, node: Any) -> int:
        value: int = super().construct_yaml_int(node)
        if value.bit_length() > 64:
            raise ValueError("an integer of over 64 bits")
        return value

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse duplicate keys, of which PyYAML would keep the last."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    problem = f"{key.value[:100]!r} is there twice"
                    raise ComposerError(None, None, problem, key.start_mark)
                seen.add((key.tag, key.value))
        return node


Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)


def load(text: str, where: str) -> Any:
    """Return the value of the document in `text`, None if it is empty.

    Raises InvalidInputs, which begins with `where`.
    """
    with faults(where):
        return yaml.load(text, Loader)


@contextmanager
def faults(where: str) -> Iterator[None]:
    """Convert errors of PyYAML to InvalidInputs: `where`, the line if known, and the problem."""
    try:
        yield
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        problem = getattr(error, "problem", None) or "it is not YAML"
        raise InvalidInputs(f"{where}{line}: {problem}") from None
    except RecursionError:
        raise InvalidInputs(f"{where}: {_TOO_DEEP}") from None
    except _WRONG as error:  # `!!bool perhaps`, 2026-99-99
        problem = f"a value cannot be read ({type(error).__name__}: {error})"
        raise InvalidInputs(f"{where}: {problem:.300}") from None
