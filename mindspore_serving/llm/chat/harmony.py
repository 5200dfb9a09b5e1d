"""Reader and grammar of Harmony, the format of gpt-oss: messages of several channels.

An answer begins behind `<|start|>assistant`.  Analysis is reasoning, a message to `functions.NAME`
is a call, and the others are content.  Pure: the concatenation of what the reader returns does not
depend on how the text was split.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mindspore_serving.core.llm_messages import Grammar, ToolCallDelta
from mindspore_serving.llm.chat.deltas import Delta, PlainContent, Reasoning
from mindspore_serving.llm.chat.json_reader import without_partial_marker
from mindspore_serving.llm.grammar.source import answer_rule

_FUNCTIONS = "functions."
_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>")
_HEADERS = ("<|start|>", "<|channel|>", " to=")
CLOSING = "<|end|><|start|>assistant<|channel|>final<|message|>"
"""End of the reasoning, and the beginning of the final message."""
_MAX_HEADER_CHARS = 1024
_MAX_MESSAGES = 16  # that a grammar allows before the last
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_KINDS = {"analysis": "reasoning", "commentary": "content", "final": "content"}


class HarmonyReader:
    """Reader of one answer.

    `_kind` is what the message being read is: "reasoning", "content" or "call"; "" while its header
    is read.
    """

    def __init__(self) -> None:
        self._kind = ""
        self._held = ""
        self._num_calls = 0
        self._has_arguments = False

    def feed(self, text: str) -> list[Delta]:
        """Return what `text` adds."""
        self._held += text
        out: list[Delta] = []
        while self._held and (self._read_body(out) if self._kind else self._read_header(out)):
            pass
        return out

    def finish(self, *, is_cut: bool = False) -> list[Delta]:
        """Return what was held back; a header is dropped."""
        out: list[Delta] = []
        if self._kind:
            self._emit(self._held, out)
            self._end_message(out, is_cut=is_cut)
        self._held = ""
        return out

    def _read_header(self, out: list[Delta]) -> bool:
        """Read up to the text of a message; return whether it has begun.

        A text without any header is content.
        """
        begins = any(self._held.startswith(sign[: len(self._held)]) for sign in (*_HEADERS, *_ENDS))
        if not begins:
            self._kind = "content"
            return True
        header, marker, rest = self._held.partition(_MESSAGE)
        if not marker:
            if len(header) > _MAX_HEADER_CHARS:
                self._kind = "content"
                return True
            return False
        self._held = rest
        channel, recipient = _CHANNEL.findall(header), _RECIPIENT.search(header)
        self._kind = _KINDS.get(channel[-1] if channel else "", "content")
        if recipient and recipient[1].startswith(_FUNCTIONS):
            self._kind, self._has_arguments = "call", False
            out.append(ToolCallDelta(self._num_calls, recipient[1].removeprefix(_FUNCTIONS)))
            self._num_calls += 1
        elif recipient:
            self._kind = "reasoning"  # to a tool that the request did not offer
        return True

    def _read_body(self, out: list[Delta]) -> bool:
        """Read the text of a message; return whether it has ended."""
        positions = [(self._held.find(end), end) for end in _ENDS]
        position, end = min((pair for pair in positions if pair[0] >= 0), default=(-1, ""))
        if position >= 0:
            self._emit(self._held[:position], out)
            self._end_message(out)
            keeps = end in _HEADERS  # it begins the next header
            self._held = self._held[position + (0 if keeps else len(end)) :]
            return True
        shown = min((without_partial_marker(self._held, end) for end in _ENDS), key=len)
        self._emit(shown, out)
        self._held = self._held[len(shown) :]
        return False

    def _emit(self, text: str, out: list[Delta]) -> None:
        if not text:
            return
        if self._kind == "call":
            self._has_arguments = True
            out.append(ToolCallDelta(self._num_calls - 1, None, text))
        else:
            out.append(Reasoning(text) if self._kind == "reasoning" else PlainContent(text))

    def _end_message(self, out: list[Delta], *, is_cut: bool = False) -> None:
        if self._kind == "call" and not self._has_arguments and not is_cut:
            out.append(ToolCallDelta(self._num_calls - 1, None, "{}"))
        self._kind = ""


def harmony_grammar(
    functions: Sequence[tuple[str, Mapping[str, Any]]], form: Grammar | None, *, must_call: bool
) -> Grammar:
    """Return the grammar of an answer that ends with a call or with the final message.

    Args:
        functions: names and schemas of the tools that may be called.
        form: grammar of the final message, None for any text.
        must_call: whether the answer has to end with a call.
    """
    ends = ["call"] * bool(functions) + ["final"] * (not must_call)
    calls = " | ".join(f"call_{index}" for index in range(len(functions)))
    rules = [
        f"start: earlier{{0,{_MAX_MESSAGES}}} ({' | '.join(ends)})",
        'earlier: channel ("analysis" | "commentary") message earlier_text turn "assistant"',
        'earlier_text[suffix="<|end|>"]: TEXT',
        "TEXT: /(?s:.*)/",
        'channel: "<|channel|>"',
        'message: "<|message|>"',
        'turn: "<|start|>"',
        'constrain: "<|constrain|>"',
    ]
    if functions:
        rules.append(f"call: {calls}")
    for index, (name, schema) in enumerate(functions):
        to, text = f"to={_FUNCTIONS}{name}", _quoted
        rules += [
            f"call_{index}: header_{index} message args_{index}",
            f"header_{index}: channel {text(f'commentary {to} ')} constrain {text('json')}"
            f" | {text(f' {to}')} channel {text('commentary json')}",
            f"args_{index}: %json {_quoted(schema)}",
        ]
    if not must_call:
        rules.append('final: channel "final" message form')
        rules.append(answer_rule(form, "form") if form else "form: TEXT")
    return Grammar("lark", "\n".join(rules) + "\n")


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
