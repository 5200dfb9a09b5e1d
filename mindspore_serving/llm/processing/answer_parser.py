"""One answer as it comes: text in, chunks with reasoning, text and calls of tools apart out.

Put together, the chunks are the same however the text was cut.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

from mindspore_serving.core.llm_messages import Chunk, ToolCallDelta
from mindspore_serving.llm.chat.output_parser import Content, Delta, Reasoning
from mindspore_serving.llm.processing.answer_format import AnswerFormat

_PLACES = {Reasoning: 0, Content: 1, ToolCallDelta: 2}  # in a chunk


class AnswerParser:
    """Parses one answer."""

    def __init__(self, answer_format: AnswerFormat) -> None:
        self._parser = answer_format.parser()
        self._parallel = answer_format.parallel
        self._has_calls = False
        self._has_reasoning = False
        self._is_reasoning = True  # until something else was written
        self._num_tokens = 0  # of reasoning and its markers

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens so far up to the first that is not reasoning."""
        return self._num_tokens if self._has_reasoning else 0

    def parse(self, chunk: Chunk, parts: Iterable[tuple[str, int]]) -> list[Chunk]:
        """`chunk` taken apart; `parts` are the texts that it is made of, each with its number of
        tokens.  Empty if nothing can be shown yet."""
        is_end = chunk.finish_reason is not None
        found = [(self._parser.feed(text), num_tokens) for text, num_tokens in parts]
        if is_end:
            found[-1][0].extend(self._parser.finish())
        for deltas, num_tokens in found:
            self._count(deltas, num_tokens)
        deltas = [one for deltas, _ in found for one in deltas if self._parallel or _is_first(one)]
        self._has_calls = self._has_calls or any(isinstance(one, ToolCallDelta) for one in deltas)
        if not deltas and not is_end and chunk.tokens is None:
            return []
        return self._chunks(chunk, _groups(deltas))

    def _count(self, deltas: Sequence[Delta], num_tokens: int) -> None:
        is_reasoning = [isinstance(delta, Reasoning) for delta in deltas]
        self._has_reasoning = self._has_reasoning or any(is_reasoning)
        self._is_reasoning = self._is_reasoning and all(is_reasoning)
        self._num_tokens += num_tokens if self._is_reasoning else 0

    def _chunks(self, chunk: Chunk, groups: Sequence[Sequence[Delta]]) -> list[Chunk]:
        """A chunk for each group: the first has the tokens, the last the reason to finish."""
        reason, last = chunk.finish_reason, len(groups) - 1
        if reason == "stop" and self._has_calls:
            reason = "tool_calls"
        return [
            Chunk(
                chunk.index,
                "".join([one.text for one in group if isinstance(one, Content)]),
                () if place else chunk.token_ids,
                None if place else chunk.tokens,
                reason if place == last else None,
                chunk.stop_reason if place == last else None,
                "".join([one.text for one in group if isinstance(one, Reasoning)]),
                _calls(group),
            )
            for place, group in enumerate(groups)
        ]


def _is_first(delta: Delta) -> bool:
    """Whether it is not of a call behind the first."""
    return not isinstance(delta, ToolCallDelta) or delta.index == 0


def _groups(deltas: Iterable[Delta]) -> list[list[Delta]]:
    """`deltas` in their order, in groups that have reasoning first and calls last."""
    groups: list[list[Delta]] = [[]]
    place = 0
    for delta in deltas:
        if _PLACES[type(delta)] < place:
            groups.append([])
        place = _PLACES[type(delta)]
        groups[-1].append(delta)
    return groups


def _calls(deltas: Iterable[Delta]) -> tuple[ToolCallDelta, ...]:
    """The calls among `deltas`, with arguments that follow one another as one."""
    calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
    return tuple(
        ToolCallDelta(index, name, "".join([part.arguments for part in parts]))
        for (index, name), parts in groupby(calls, lambda call: (call.index, call.name))
    )
