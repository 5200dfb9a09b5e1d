"""Format of the answers to a request, and the parser of such an answer, while it is generated.

The format says which tools may be called, which grammar forces a call or a form, and whether there
is reasoning before.  Knows neither a tokenizer nor an engine.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from msgspec import structs

from mindspore_serving.core.llm_messages import (
    Chunk,
    Generate,
    Grammar,
    Refused,
    RequestRefused,
    ToolCallDelta,
)
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField, InvalidInputs
from mindspore_serving.llm.chat.output_parser import Delta, OutputParser, PlainContent, Reasoning
from mindspore_serving.llm.chat.reasoning_formats import as_requested, reason_first
from mindspore_serving.llm.chat.tool_formats import HARMONY, tool_names
from mindspore_serving.llm.chat.tool_grammars import auto_grammar, tool_grammar
from mindspore_serving.llm.grammar import gbnf, structural_tags

TRANSLATIONS: dict[str, Callable[[str], str]] = {
    "gbnf": gbnf.to_lark,
    "structural_tag": structural_tags.to_lark,
}
"""Functions that make Lark of a grammar's source, by its kind."""

Tools = list[dict[str, Any]]
_ORDER = {Reasoning: 0, PlainContent: 1, ToolCallDelta: 2}  # within a chunk


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Form in which answers are generated and parsed.

    Args:
        tools: shown to the model.
        grammar: restricts what the model may write.
        tool_format: a row of `llm.chat.tool_formats`, "" for none.
        reasoning_format: a row of `llm.chat.reasoning_formats`, "" for none.
        is_parsed: whether reasoning and calls are separated from the text.
        parallel: whether calls behind the first count.
        unmarked: whether calls without the markers of the format count.
    """

    tools: Tools
    grammar: Grammar | None
    tool_format: str = ""
    reasoning_format: str = ""
    is_parsed: bool = False
    parallel: bool = True
    unmarked: bool = False

    @property
    def shows_special_tokens(self) -> bool:
        """True if the text to parse needs special tokens: in many vocabularies markers are such."""
        return self.is_parsed and bool(self.tool_format or self.reasoning_format)


def to_answer_format(request: Generate, card: ModelCard) -> AnswerFormat:
    """Return the format of the answers to a request.  Raises InvalidField or RequestRefused."""
    tools = request.tools or []
    if request.grammar is not None and request.grammar.kind in TRANSLATIONS:
        try:
            lark = Grammar("lark", TRANSLATIONS[request.grammar.kind](request.grammar.source))
        except InvalidInputs as error:
            raise RequestRefused(Refused("grammar", str(error))) from None
        request = structs.replace(request, grammar=lark)
    if not request.parse_output:
        return AnswerFormat(tools, request.grammar)
    choice = request.tool_choice
    if choice.mode == "none":
        tools = []
    reasoning = as_requested(card.reasoning_format, request.template_options)
    try:
        grammar = _tool_grammar(request, tools, card.tool_format) if tools else request.grammar
        if grammar and not (tools and reasoning == HARMONY):  # its tool grammars have reasoning
            grammar = reason_first(reasoning, grammar)
    except InvalidField:
        raise
    except InvalidInputs as error:
        raise RequestRefused(Refused("grammar", str(error))) from None
    return AnswerFormat(
        tools,
        grammar,
        card.tool_format if tools else "",
        reasoning,
        is_parsed=bool(tools or reasoning),
        parallel=choice.parallel,
        # An answer that follows the request's grammar is text, whatever it looks like.
        unmarked=card.unmarked_calls and choice.mode == "auto" and request.grammar is None,
    )


def _tool_grammar(request: Generate, tools: Tools, tool_format: str) -> Grammar:
    choice = request.tool_choice
    tool_names(tools)  # now rather than when the answer is parsed
    if choice.mode == "required":
        return tool_grammar(tool_format, tools, choice.name, choice.parallel)
    if not tool_format:
        raise InvalidField(
            "tool_choice",
            'is "auto", but the chat template of this model has no format for tool calls: set '
            '"none", "required" or the name of a tool',
        )
    return auto_grammar(tool_format, tools, choice.parallel, request.grammar)


class AnswerParser:
    """Parser of one answer: text in; chunks with reasoning, text and tool calls apart out.

    Put together, the chunks are the same however the text was cut.
    """

    def __init__(self, answer_format: AnswerFormat) -> None:
        self._parser = OutputParser(
            answer_format.tool_format,
            answer_format.reasoning_format,
            answer_format.tools,
            unmarked=answer_format.unmarked,
        )
        self._parallel = answer_format.parallel
        self._has_calls = False
        self._has_reasoning = False
        self._is_reasoning = True  # until other text is written
        self._num_tokens = 0  # of reasoning and its markers

    @property
    def num_reasoning_tokens(self) -> int:
        """Number of tokens so far up to the first that is not reasoning."""
        return self._num_tokens if self._has_reasoning else 0

    def parse(self, chunk: Chunk, parts: Iterable[tuple[str, int]]) -> list[Chunk]:
        """Return `chunk` split into reasoning, text and calls; empty if nothing can be shown yet.

        `parts` are the texts that it is made of, each with its number of tokens.
        """
        is_end = chunk.finish_reason is not None
        parsed = [(self._parser.feed(text), num_tokens) for text, num_tokens in parts]
        if is_end:
            parsed[-1][0].extend(self._parser.finish(is_cut=chunk.finish_reason == "length"))
        for deltas, num_tokens in parsed:
            self._count(deltas, num_tokens)
        shown = [
            delta for deltas, _ in parsed for delta in deltas if self._parallel or _is_first(delta)
        ]
        self._has_calls |= any(isinstance(delta, ToolCallDelta) for delta in shown)
        if not shown and not is_end and chunk.tokens is None:
            return []
        return self._chunks(chunk, _groups(shown))

    def _count(self, deltas: Sequence[Delta], num_tokens: int) -> None:
        is_reasoning = [isinstance(delta, Reasoning) for delta in deltas]
        self._has_reasoning = self._has_reasoning or any(is_reasoning)
        self._is_reasoning = self._is_reasoning and all(is_reasoning)
        self._num_tokens += num_tokens if self._is_reasoning else 0

    def _chunks(self, chunk: Chunk, groups: Sequence[Sequence[Delta]]) -> list[Chunk]:
        """Return a chunk for each group: the first has the tokens, the last the finish reason."""
        reason, last = chunk.finish_reason, len(groups) - 1
        if reason == "stop" and self._has_calls:
            reason = "tool_calls"
        return [
            Chunk(
                chunk.index,
                "".join([delta.text for delta in group if isinstance(delta, PlainContent)]),
                () if index else chunk.token_ids,
                None if index else chunk.tokens,
                reason if index == last else None,
                chunk.stop_reason if index == last else None,
                "".join([delta.text for delta in group if isinstance(delta, Reasoning)]),
                _calls(group),
                blames_request=chunk.blames_request,
            )
            for index, group in enumerate(groups)
        ]


def _is_first(delta: Delta) -> bool:
    """Return whether `delta` belongs to text or to the first call."""
    return not isinstance(delta, ToolCallDelta) or delta.index == 0


def _groups(deltas: Iterable[Delta]) -> list[list[Delta]]:
    """Return `deltas` in order, in groups that have reasoning first and calls last."""
    groups: list[list[Delta]] = [[]]
    last = 0
    for delta in deltas:
        if _ORDER[type(delta)] < last:
            groups.append([])
        last = _ORDER[type(delta)]
        groups[-1].append(delta)
    return groups


def _calls(deltas: Iterable[Delta]) -> tuple[ToolCallDelta, ...]:
    """Return the calls among `deltas`, consecutive arguments of a call joined."""
    calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
    return tuple(
        ToolCallDelta(index, name, "".join([part.arguments for part in parts]))
        for (index, name), parts in groupby(calls, lambda call: (call.index, call.name))
    )
