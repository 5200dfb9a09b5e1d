"""What one rendering of a chat template may take: time, and characters of all texts that it makes.

What a template asks for is charged before it is made, so that nothing large is ever there.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mindspore_serving.errors import TooLarge

MAX_WIDTH = 1024  # of what a text is filled up to, and of other numbers that repeat something
_MAX_INT_BITS = 4096
_MAX_REPEATED = 1 << 20  # items of what a template multiplies
_VALUE = 64  # what a value counts beside its characters
_PERCENT = re.compile(r"%[-+ #0]*(\*|\d*)(?:\.(\*|\d+))?")
_BRACES = re.compile(r"\{[^{}]*:([^{}]*(?:\{)?)")
_NUMBER = re.compile(r"\d+")


class RenderingBudget:
    """Of one rendering, by `clock`.  Its methods raise TooLarge."""

    __slots__ = ("_clock", "_deadline", "_room")

    def __init__(self, max_chars: int, max_seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._deadline = clock() + max_seconds
        self._room = max_chars

    def tick(self) -> None:
        """A loop goes on, or something is called."""
        if self._clock() > self._deadline:
            raise TooLarge("the chat takes the model's template too long")

    def metered(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.tick()
            yield item

    def spend(self, num_chars: int) -> None:
        """So many characters, or entries of a list, are about to be made."""
        self._room -= num_chars
        if self._room < 0:
            raise TooLarge("the chat template computes something too large")

    def spend_on(self, value: Any) -> None:
        """`value` is about to become a text; what is in it several times counts as often."""
        waiting: list[Any] = [value]
        while waiting:
            one = waiting.pop()
            self.spend(len(one) + _VALUE if isinstance(one, str) else _VALUE)
            if isinstance(one, Mapping):
                waiting += [*one.keys(), *one.values()]
            elif isinstance(one, list | tuple):
                waiting += one

    def check_width(self, value: Any) -> None:
        """`value` is no large number; anything else is left to who uses it."""
        if isinstance(value, int) and abs(value) > MAX_WIDTH:
            raise TooLarge(
                f"the chat template fills something up to {value}, expected at most {MAX_WIDTH}"
            )

    def check_product(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > _MAX_INT_BITS:
                raise TooLarge("the chat template computes something too large")
            return
        for many, times in ((left, right), (right, left)):
            if isinstance(many, str | list | tuple) and isinstance(times, int):
                count = len(many) * max(0, times)
                self.spend(count if count <= _MAX_REPEATED else self._room + 1)

    def check_sum(self, *values: Any) -> None:
        for one in values:
            if isinstance(one, str | list | tuple):
                self.spend(len(one))

    def check_format(self, text: str, values: Iterable[Any]) -> None:
        """`text` is formatted with %, or as `str.format` does."""
        widths = [part for found in _PERCENT.findall(text) for part in found]
        widths += _BRACES.findall(text)
        for number in _NUMBER.findall(" ".join(widths)):
            self.check_width(int(number[:9]))
        is_given = any("*" in width or "{" in width for width in widths)  # among the values
        for value in values:
            if is_given:
                self.check_width(value)
            self.spend_on(value)
        self.spend(len(text) * MAX_WIDTH // 4)

    def check_replace(self, text: str, old: Any, new: Any) -> None:
        count = text.count(old) if isinstance(old, str) else 0
        self.spend(len(text) + count * len(str(new)))

    def dump_json(self, value: Any, **options: Any) -> str:
        """JSON as `json.dumps` writes it."""
        self.check_width(options.get("indent"))
        pieces = []
        for piece in json.JSONEncoder(**options).iterencode(value):
            self.tick()
            self.spend(len(piece) + _VALUE)
            pieces.append(piece)
        return "".join(pieces)
