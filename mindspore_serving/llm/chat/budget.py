"""Budget of one rendering of a chat template: time, and characters of all texts that it makes.

Every operation is charged before it runs, so nothing large is ever allocated.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mindspore_serving.errors import TooLarge

MAX_WIDTH = 1024  # largest width of padding, and of other numbers that repeat something
_MAX_INT_BITS = 4096
_MAX_REPEATED = 1 << 20  # items of a list or text that a template multiplies
_VALUE = 64  # charge for a value, in addition to its characters
_PERCENT = re.compile(r"%[-+ #0]*(\*|\d*)(?:\.(\*|\d+))?")
_BRACES = re.compile(r"\{[^{}]*:([^{}]*(?:\{)?)")
_NUMBER = re.compile(r"\d+")


class RenderingBudget:
    """Budget of one rendering, by `clock`; its methods raise TooLarge."""

    __slots__ = ("_clock", "_deadline", "_room")

    def __init__(self, max_chars: int, max_seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._deadline = clock() + max_seconds
        self._room = max_chars

    def tick(self) -> None:
        """Check the time; called for each iteration of a loop and each call."""
        if self._clock() > self._deadline:
            raise TooLarge("the chat takes the model's template too long")

    def metered(self, items: Iterable[Any]) -> Iterator[Any]:
        """Iterate over `items`, checking the time at each."""
        for item in items:
            self.tick()
            yield item

    def spend(self, num_chars: int) -> None:
        """Charge for characters, or entries of a list, that are about to be made."""
        self._room -= num_chars
        if self._room < 0:
            raise TooLarge("the chat template computes something too large")

    def spend_on(self, value: Any) -> None:
        """Charge for `value` before it becomes a text.

        A value that it contains several times counts each time.
        """
        pending: list[Any] = [value]
        while pending:
            current = pending.pop()
            self.spend(len(current) + _VALUE if isinstance(current, str) else _VALUE)
            if isinstance(current, Mapping):
                pending += [*current.keys(), *current.values()]
            elif isinstance(current, list | tuple):
                pending += current

    def check_width(self, value: Any) -> None:
        """Check that `value` is no large integer; other types are left to the caller."""
        if isinstance(value, int) and abs(value) > MAX_WIDTH:
            raise TooLarge(
                f"the chat template pads a text to {value} characters, expected at most {MAX_WIDTH}"
            )

    def check_product(self, left: Any, right: Any) -> None:
        """Charge for a product before it is computed."""
        if isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > _MAX_INT_BITS:
                raise TooLarge("the chat template computes something too large")
            return
        for many, times in ((left, right), (right, left)):
            if isinstance(many, str | list | tuple) and isinstance(times, int):
                count = len(many) * max(0, times)
                self.spend(count if count <= _MAX_REPEATED else self._room + 1)

    def check_sum(self, *values: Any) -> None:
        """Charge for a sum of texts or lists before it is computed."""
        for value in values:
            if isinstance(value, str | list | tuple):
                self.spend(len(value))

    def check_format(self, text: str, values: Iterable[Any]) -> None:
        """Charge for a text formatted with %, or by `str.format`."""
        widths = [part for match in _PERCENT.findall(text) for part in match]
        widths += _BRACES.findall(text)
        for number in _NUMBER.findall(" ".join(widths)):
            self.check_width(int(number[:9]))
        has_width_argument = any("*" in width or "{" in width for width in widths)
        for value in values:
            if has_width_argument:
                self.check_width(value)
            self.spend_on(value)
        self.spend(len(text) * MAX_WIDTH // 4)

    def check_replace(self, text: str, old: Any, new: Any) -> None:
        """Charge for a replacement in `text`."""
        count = text.count(old) if isinstance(old, str) else 0
        self.spend(len(text) + count * len(str(new)))

    def dump_json(self, value: Any, **options: Any) -> str:
        """Return JSON as `json.dumps` writes it."""
        self.check_width(options.get("indent"))
        pieces = []
        for piece in json.JSONEncoder(**options).iterencode(value):
            self.tick()
            self.spend(len(piece) + _VALUE)
            pieces.append(piece)
        return "".join(pieces)
