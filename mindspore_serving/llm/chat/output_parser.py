"""An answer's text, as it comes, taken apart: reasoning, content, calls of tools.

Pure text in, small pieces out, which together do not depend on how the text was cut.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mindspore_serving.core.llm_messages import ToolCallDelta
from mindspore_serving.llm.chat.json_reader import HeldText, without_start_of
from mindspore_serving.llm.chat.reasoning_formats import REASONING_FORMATS
from mindspore_serving.llm.chat.tool_calls import CallReader, PlainContent
from mindspore_serving.llm.chat.unmarked_calls import UnmarkedReader

__all__ = ["PlainContent", "Delta", "OutputParser", "Reasoning"]


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thinks before it answers."""

    text: str


Delta: TypeAlias = PlainContent | Reasoning | ToolCallDelta


class OutputParser:
    """Reads one answer.

    Space around reasoning, before a call and behind the last one is dropped.  What only looks like
    a marker or a call is content; of a call that breaks, the arguments so far are kept.

    Args:
        tool_format: a row of `TOOL_FORMATS`; "" where a JSON object may be a call.
        reasoning_format: a row of `reasoning_formats.REASONING_FORMATS`, or "".
        tools: as OpenAI writes them; without any, no calls are looked for.
        unmarked: whether calls without the markers of the format are read as well.
    """

    def __init__(
        self,
        tool_format: str,
        reasoning_format: str,
        tools: Sequence[Mapping[str, Any]],
        *,
        unmarked: bool = False,
    ) -> None:
        self._reasoning = _ReasoningReader(reasoning_format) if reasoning_format else None
        self._calls = CallReader(tool_format, tools, is_held=unmarked) if tools else None
        self._unmarked = UnmarkedReader(tools) if tools and unmarked else None

    def feed(self, text: str) -> list[Delta]:
        """What `text` adds."""
        if self._reasoning is None:
            return self._read(text)
        thought, text = self._reasoning.feed(text)
        return _reasoning(thought) + self._read(text)

    def finish(self, *, is_cut: bool = False) -> list[Delta]:
        """What was held back, once there is no more text; `is_cut` if the model would have gone
        on.
        """
        out: list[Delta] = []
        if self._reasoning is not None:
            thought, text = self._reasoning.finish()
            out = _reasoning(thought) + self._read(text)
        found = self._calls.finish(is_cut=is_cut) if self._calls else []
        if self._unmarked is not None:
            found = [*self._unmarked.feed(found), *self._unmarked.finish()]
        return [*out, *found]

    def _read(self, text: str) -> list[Delta]:
        if self._calls is None:
            return [PlainContent(text)] if text else []
        found = self._calls.feed(text)
        return [*(self._unmarked.feed(found) if self._unmarked else found)]


def _reasoning(text: str) -> list[Delta]:
    return [Reasoning(text)] if text else []


class _ReasoningReader:
    """Separates what is before the end of reasoning from what is behind it."""

    def __init__(self, name: str) -> None:
        self._format = REASONING_FORMATS[name]
        self._held = HeldText()
        self._part = self._begin

    def feed(self, text: str) -> tuple[str, str]:
        """The next reasoning, and the next text behind it."""
        if self._part in (self._begin, self._inside) and self._held.adds(text):
            return "", ""
        return self._part(self._held.take() + text)

    def finish(self) -> tuple[str, str]:
        rest = self._held.take()
        is_open = self._part == self._begin and self._format.is_open
        return (rest, "") if is_open or self._part == self._inside else ("", rest)

    def _begin(self, text: str) -> tuple[str, str]:
        begin, shown = self._format.begin, text.lstrip()
        if begin.startswith(shown) and shown != begin:
            self._held.put(text)
            return "", ""
        if shown.startswith(begin):
            self._part = self._lead
            return self._lead(shown[len(begin) :])
        self._part = self._lead if self._format.is_open else self._outside
        return self._part(text)

    def _lead(self, text: str) -> tuple[str, str]:
        text = text.lstrip()
        if not text:
            return "", ""
        self._part = self._inside
        return self._inside(text)

    def _inside(self, text: str) -> tuple[str, str]:
        end = self._format.end
        place = text.find(end)
        if place >= 0:
            self._part = self._behind
            return text[:place].rstrip(), self._behind(text[place + len(end) :])[1]
        shown = without_start_of(text, end).rstrip()
        self._held.put(text[len(shown) :])
        return shown, ""

    def _behind(self, text: str) -> tuple[str, str]:
        text = text.lstrip()
        if text:
            self._part = self._outside
        return "", text

    def _outside(self, text: str) -> tuple[str, str]:
        return "", text
