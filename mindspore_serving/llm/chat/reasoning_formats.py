"""Formats in which models write their reasoning. Knows no tokens and no requests."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.chat.harmony import harmony_grammar
from mindspore_serving.llm.chat.tool_formats import HARMONY
from mindspore_serving.llm.grammar.source import answer_rule


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Markers around reasoning.

    Args:
        begin: marker before it.
        end: marker after it.
        is_open: the prompt ends inside it.
        answer: markers around the text after it, which are dropped.
    """

    begin: str
    end: str
    is_open: bool = False
    answer: tuple[str, str] = ("", "")


REASONING_FORMATS = {
    "think": ReasoningFormat("<think>", "</think>"),
    "think_open": ReasoningFormat("<think>", "</think>", is_open=True),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
    "pangu": ReasoningFormat("[unused16]", "[unused17]"),
    "seed_oss": ReasoningFormat("<seed:think>", "</seed:think>"),
    "gemma4": ReasoningFormat("<|channel>thought\n", "<channel|>"),
    "command": ReasoningFormat(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    "hunyuan": ReasoningFormat("<think>", "</think>", answer=("<answer>", "</answer>")),
    "ernie": ReasoningFormat("<think>", "</think>", answer=("<response>", "</response>")),
    "ernie_open": ReasoningFormat(
        "<think>", "</think>", is_open=True, answer=("<response>", "</response>")
    ),
    HARMONY: ReasoningFormat("<|channel|>analysis<|message|>", "<|end|>"),
}
# Texts of chat templates, and the format that each shows; the first wins.
_SIGNS = (
    ("[THINK]", "mistral"),
    ("<seed:think>", "seed_oss"),
    ("[unused9]", "pangu"),  # begins a turn; the model itself writes the markers of reasoning
    ("<|channel>", "gemma4"),
    ("<|START_THINKING|>", "command"),
    ("<|channel|>analysis", HARMONY),
)

# Template options by which a request turns reasoning off.
_SWITCHES = ("enable_thinking", "thinking")


def find_reasoning_format(template_source: str) -> str:
    """Return the name of the format that a chat template uses, "" for none.

    "think_open" if a prompt made with the template ends inside reasoning, else "think"; others by
    their markers.  The template is tried with a single user's message; one that refuses it is
    "think".
    """
    source = template_source
    named = next((name for sign, name in _SIGNS if sign in source), "")
    if named or ("</think>" not in source and "<think>" not in source):
        return named
    # The end of a prompt says whether the answer begins inside of reasoning.
    is_open = _prompt(source).rstrip().endswith("<think>")
    if "<response>" in source:
        return "ernie_open" if is_open else "ernie"
    if "<answer>" in source:
        return "hunyuan"
    return "think_open" if is_open else "think"


def as_requested(reasoning_format: str, template_options: Mapping[str, Any]) -> str:
    """Return the format under template options that may turn reasoning off."""
    is_off = any(template_options.get(switch) is False for switch in _SWITCHES)
    return reasoning_format.removesuffix("_open") if is_off else reasoning_format


def reason_first(reasoning_format: str, grammar: Grammar) -> Grammar:
    """Return `grammar` for an answer that may begin with reasoning.

    With "think_open" the answer begins inside the reasoning, which must end.  Raises InvalidInputs
    if a JSON schema is not JSON.
    """
    if not reasoning_format:
        return grammar
    if reasoning_format == HARMONY:
        return harmony_grammar((), grammar, must_call=False)
    row = REASONING_FORMATS[reasoning_format]
    answer = "answer_begin? answer answer_end?" if row.answer[0] else "answer"
    rules = [
        f"start: reasoning REASONING_SPACE {answer}"
        if row.is_open
        else f"start: (reasoning_begin reasoning REASONING_SPACE)? {answer}",
        f"reasoning_begin: {json.dumps(row.begin)}",
        f"reasoning[suffix={json.dumps(row.end)}]: REASONING_TEXT",
        "REASONING_TEXT: /(?s:.*)/",
        "REASONING_SPACE: /[ \\n\\r\\t]{0,8}/",
    ]
    if row.is_open:
        del rules[1]
    if row.answer[0]:
        names = ("answer_begin", "answer_end")
        rules += [
            f"{name}: {json.dumps(text)}" for name, text in zip(names, row.answer, strict=True)
        ]
    return Grammar("lark", "\n".join(rules) + "\n" + answer_rule(grammar, "answer"))


def _prompt(template_source: str) -> str:
    from mindspore_serving.llm.chat.template import ChatTemplate  # its library is large

    try:
        return ChatTemplate(template_source).render([{"role": "user", "content": "Hello"}])
    except ServingError:
        return ""
