"""How models write what they think before they answer.  Knows no tokens and no requests."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindspore_serving.core.llm_messages import Grammar
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.grammar.source import answer_rule


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The markers around reasoning.  If `is_open`, the prompt ends inside it."""

    begin: str
    end: str
    is_open: bool = False


REASONING_FORMATS = {
    "think": ReasoningFormat("<think>", "</think>"),
    "think_open": ReasoningFormat("<think>", "</think>", is_open=True),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
}

# Options by which templates let a request turn reasoning off.
_SWITCHES = ("enable_thinking", "thinking")


def find_reasoning_format(template_source: str) -> str:
    """The name of the format that a chat template shows: "think"; "think_open" if a prompt made
    with it ends inside reasoning; "mistral"; "" if it shows none.

    Tried with one message of a user; a template that refuses it does not end inside reasoning.
    """
    if "[THINK]" in template_source:
        return "mistral"
    if "</think>" not in template_source and "<think>" not in template_source:
        return ""
    # The end of a prompt says whether the answer begins inside of reasoning.
    return "think_open" if _prompt(template_source).rstrip().endswith("<think>") else "think"


def as_requested(reasoning_format: str, template_options: Mapping[str, Any]) -> str:
    """The format if the template gets these options, which may turn reasoning off."""
    is_off = any(template_options.get(switch) is False for switch in _SWITCHES)
    return "think" if reasoning_format == "think_open" and is_off else reasoning_format


def reason_first(reasoning_format: str, grammar: Grammar) -> Grammar:
    """`grammar` for an answer that may reason before (for "think_open": that ends its reasoning).

    Raises InvalidInputs if a JSON schema is not JSON.
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
