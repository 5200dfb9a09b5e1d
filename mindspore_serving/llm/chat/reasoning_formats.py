"""Formats in which models write their reasoning. Knows no tokens and no requests."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.grammar.source import answer_rule


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Markers around reasoning; `is_open` if the prompt ends inside it."""

    begin: str
    end: str
    is_open: bool = False


REASONING_FORMATS = {
    "think": ReasoningFormat("<think>", "</think>"),
    "think_open": ReasoningFormat("<think>", "</think>", is_open=True),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
}

# Template options by which a request turns reasoning off.
_SWITCHES = ("enable_thinking", "thinking")


def find_reasoning_format(template_source: str) -> str:
    """Return the name of the format that a chat template uses, "" for none.

    "think_open" if a prompt made with the template ends inside reasoning, else "think"; "mistral"
    by its marker.  The template is tried with a single user's message; one that refuses it is
    "think".
    """
    if "[THINK]" in template_source:
        return "mistral"
    if "</think>" not in template_source and "<think>" not in template_source:
        return ""
    # The end of a prompt says whether the answer begins inside of reasoning.
    return "think_open" if _prompt(template_source).rstrip().endswith("<think>") else "think"


def as_requested(reasoning_format: str, template_options: Mapping[str, Any]) -> str:
    """Return the format under template options that may turn reasoning off."""
    is_off = any(template_options.get(switch) is False for switch in _SWITCHES)
    return "think" if reasoning_format == "think_open" and is_off else reasoning_format


def reason_first(reasoning_format: str, grammar: Grammar) -> Grammar:
    """Return `grammar` for an answer that may begin with reasoning.

    With "think_open" the answer begins inside the reasoning, which must end.  Raises InvalidInputs
    if a JSON schema is not JSON.
    """
    if not reasoning_format:
        return grammar
    row = REASONING_FORMATS[reasoning_format]
    rules = [
        "start: reasoning REASONING_SPACE answer"
        if row.is_open
        else "start: (reasoning_begin reasoning REASONING_SPACE)? answer",
        f"reasoning_begin: {json.dumps(row.begin)}",
        f"reasoning[suffix={json.dumps(row.end)}]: REASONING_TEXT",
        "REASONING_TEXT: /(?s:.*)/",
        "REASONING_SPACE: /[ \\n\\r\\t]{0,8}/",
    ]
    if row.is_open:
        del rules[1]
    return Grammar("lark", "\n".join(rules) + "\n" + answer_rule(grammar, "answer"))


def _prompt(template_source: str) -> str:
    from mindspore_serving.llm.chat.template import ChatTemplate  # its library is large

    try:
        return ChatTemplate(template_source).render([{"role": "user", "content": "Hello"}])
    except ServingError:
        return ""
