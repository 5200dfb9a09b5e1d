"""What the answers to a request look like: the tools that may be called, the grammar that forces a
call or a form, and whether there is reasoning before.  Knows neither tokens nor an engine.
"""

from dataclasses import dataclass
from typing import Any

from mindspore_serving.core.llm_messages import Generate, Grammar, Refused, RequestRefused
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.errors import InvalidField, InvalidInputs
from mindspore_serving.llm.chat.output_parser import OutputParser, shows_special_tokens
from mindspore_serving.llm.chat.reasoning_formats import as_asked, reason_first
from mindspore_serving.llm.chat.tool_formats import tool_grammar, tool_names

Tools = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How answers are generated and read.

    Args:
        tools: that the model sees.
        grammar: what it may write.
        tool_format, reasoning_format: rows of `llm.chat.tool_formats` and
            `llm.chat.reasoning_formats`, "" for none.
        is_parsed: whether reasoning and calls are separated from the text.
        parallel: whether calls behind the first count.
    """

    tools: Tools
    grammar: Grammar | None
    tool_format: str = ""
    reasoning_format: str = ""
    is_parsed: bool = False
    parallel: bool = True

    @property
    def shows_special_tokens(self) -> bool:
        """Whether the text that is parsed must have the special tokens."""
        return self.is_parsed and shows_special_tokens(self.tool_format, self.reasoning_format)

    def parser(self) -> OutputParser:
        """For one answer."""
        return OutputParser(self.tool_format, self.reasoning_format, self.tools)


def to_answer_format(request: Generate, card: ModelCard) -> AnswerFormat:
    """The format that a request asks for, with a model.  Raises InvalidField or RequestRefused."""
    tools = request.tools or []
    if not request.parse_output:
        return AnswerFormat(tools, request.grammar)
    choice = request.tool_choice
    if choice.mode == "none":
        tools = []
    reasoning = as_asked(card.reasoning_format, request.template_options)
    grammar = _tool_grammar(request, tools, card.tool_format) if tools else request.grammar
    if grammar is not None:
        try:
            grammar = reason_first(reasoning, grammar)
        except InvalidInputs as error:
            raise RequestRefused(Refused("grammar", str(error))) from None
    return AnswerFormat(
        tools,
        grammar,
        card.tool_format if tools else "",
        reasoning,
        is_parsed=bool(tools or reasoning),
        parallel=choice.parallel,
    )


def _tool_grammar(request: Generate, tools: Tools, tool_format: str) -> Grammar | None:
    choice = request.tool_choice
    tool_names(tools)  # now rather than when the answer is parsed
    if choice.mode == "required":
        return tool_grammar(tool_format, tools, choice.name, choice.parallel)
    if not tool_format:
        raise InvalidField(
            "tool_choice",
            'is "auto", but the chat template of this model has no form for calls of tools: give '
            '"none", "required" or the name of a tool',
        )
    if request.grammar is not None:
        raise RequestRefused(
            Refused(
                "grammar",
                "the form of the answer cannot be given together with tools and tool_choice "
                '"auto": give tool_choice "none", "required" or the name of a tool',
            )
        )
    return None
