"""Incremental parser of answers: reasoning, content and tool calls.

Takes text and returns deltas, whose concatenation does not depend on how the text was split.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mindspore_serving.llm.chat.deltas import Delta, PlainContent, Reasoning
from mindspore_serving.llm.chat.harmony import HarmonyReader
from mindspore_serving.llm.chat.json_reader import HeldText, without_partial_marker
from mindspore_serving.llm.chat.reasoning_formats import REASONING_FORMATS
from mindspore_serving.llm.chat.tool_calls import CallReader
from mindspore_serving.llm.chat.tool_formats import HARMONY
from mindspore_serving.llm.chat.unmarked_calls import UnmarkedReader

__all__ = ["PlainContent", "Delta", "OutputParser", "Reasoning"]


class OutputParser:
    """Parses one answer.

    Whitespace around reasoning, before a call and after the last one is dropped.  Text that only
    resembles a marker or a call is content; of a call that becomes invalid, the arguments so far
    are kept.

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
        self._harmony = HarmonyReader() if reasoning_format == HARMONY else None
        self._reasoning = _ReasoningReader(reasoning_format) if reasoning_format else None
        markers = REASONING_FORMATS[reasoning_format].answer if reasoning_format else ("", "")
        self._wrapped = _WrappedReader(*markers) if markers[0] else None
        self._calls = CallReader(tool_format, tools, is_held=unmarked) if tools else None
        self._unmarked = UnmarkedReader(tools) if tools and unmarked else None

    def feed(self, text: str) -> list[Delta]:
        """Return the deltas that `text` adds."""
        if self._harmony is not None:
            return self._harmony.feed(text)
        if self._reasoning is None:
            return self._read(text)
        reasoning, text = self._reasoning.feed(text)
        return _reasoning(reasoning) + self._read(self._unwrap(text))

    def finish(self, *, is_cut: bool = False) -> list[Delta]:
        """Return what was held back, after the last text.

        `is_cut` says that the model would have gone on.
        """
        if self._harmony is not None:
            return self._harmony.finish(is_cut=is_cut)
        out: list[Delta] = []
        if self._reasoning is not None:
            reasoning, text = self._reasoning.finish()
            out = _reasoning(reasoning) + self._read(self._unwrap(text, is_end=True))
        deltas = self._calls.finish(is_cut=is_cut) if self._calls else []
        if self._unmarked is not None:
            deltas = [*self._unmarked.feed(deltas), *self._unmarked.finish()]
        return [*out, *deltas]

    def _unwrap(self, text: str, *, is_end: bool = False) -> str:
        """Return `text` without the markers around the answer."""
        if self._wrapped is None:
            return text
        return self._wrapped.finish(text) if is_end else self._wrapped.feed(text)

    def _read(self, text: str) -> list[Delta]:
        if self._calls is None:
            return [PlainContent(text)] if text else []
        deltas = self._calls.feed(text)
        return [*(self._unmarked.feed(deltas) if self._unmarked else deltas)]


def _reasoning(text: str) -> list[Delta]:
    return [Reasoning(text)] if text else []


class _ReasoningReader:
    r"""Separates reasoning from the text after it.

    `_part` is the state, a method::

        _begin -> _lead -> _inside -> _after -> _outside
           \_______________________________________^   (no reasoning)

    `_begin` waits for the marker, `_lead` skips whitespace after it, `_inside` looks for the end
    marker, `_after` skips whitespace after that.
    """

    def __init__(self, name: str) -> None:
        self._format = REASONING_FORMATS[name]
        self._held = HeldText()
        self._part = self._begin

    def feed(self, text: str) -> tuple[str, str]:
        """Return the next reasoning, and the next text after it."""
        if self._part in (self._begin, self._inside) and self._held.adds(text):
            return "", ""
        return self._part(self._held.take() + text)

    def finish(self) -> tuple[str, str]:
        """Return the held text, as reasoning or as text."""
        held = self._held.take()
        is_open = self._part == self._begin and self._format.is_open
        return (held, "") if is_open or self._part == self._inside else ("", held)

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
        index = text.find(end)
        if index >= 0:
            self._part = self._after
            return text[:index].rstrip(), self._after(text[index + len(end) :])[1]
        shown = without_partial_marker(text, end).rstrip()
        self._held.put(text[len(shown) :])
        return shown, ""

    def _after(self, text: str) -> tuple[str, str]:
        text = text.lstrip()
        if text:
            self._part = self._outside
        return "", text

    def _outside(self, text: str) -> tuple[str, str]:
        return "", text


class _WrappedReader:
    """Drops the markers around the text that follows reasoning."""

    def __init__(self, begin: str, end: str) -> None:
        self._begin, self._end = begin, end
        self._marker = begin  # the next marker to drop
        self._held = ""

    def feed(self, text: str) -> str:
        """Return what of `text` can be shown."""
        self._held += text
        if self._marker == self._begin:
            shown = self._held.lstrip()
            if not shown or (self._begin.startswith(shown) and shown != self._begin):
                return ""
            self._marker = self._end
            self._held = shown.removeprefix(self._begin).lstrip()
        before, _, after = self._held.partition(self._end)
        if len(before) < len(self._held):
            self._held = ""
            return before.rstrip() + after
        shown = without_partial_marker(self._held, self._end)
        self._held = self._held[len(shown) :]
        return shown

    def finish(self, text: str) -> str:
        """Return the last text, and what was held back."""
        shown = self.feed(text)
        held, self._held = self._held, ""
        return shown + held
