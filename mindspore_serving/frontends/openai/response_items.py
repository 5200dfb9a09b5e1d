"""The output items of a response: a message, reasoning, calls of functions, made change by change,
with the events that tell of each.

An item is open until one of another kind begins.  Knows no sockets and no request.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving.core.llm_messages import Token
from mindspore_serving.frontends.openai.logprobs import of_chat
from mindspore_serving.llm.chat.output_parser import (
    CallArguments,
    CallBegun,
    Content,
    Delta,
    Reasoning,
)

Object = dict[str, Any]


@dataclass(slots=True)
class _Open:
    """What is open: `part` is that of a message or of reasoning, None for a call."""

    item: Object
    index: int  # of the item in the output
    part: Object | None = None
    texts: list[str] = field(default_factory=list)  # joined when it is closed
    logprobs: list[Object] = field(default_factory=list)

    def event(self, kind: str, **fields: Any) -> Object:
        place: Object = {"item_id": self.item["id"], "output_index": self.index}
        if self.part is not None:
            place["content_index"] = 0
        return {"type": f"response.{kind}", **place, **fields}


class Output:
    """The items of one response so far.  Every method returns the events of what it did."""

    def __init__(self) -> None:
        self.items: list[Object] = []
        self._open: _Open | None = None

    def take(self, delta: Delta, tokens: Sequence[Token] = ()) -> list[Object]:
        """`tokens` are those that a Content is made of, if their log-probabilities are wanted."""
        if isinstance(delta, Content):
            return self._add_text("message", delta.text, tokens)
        if isinstance(delta, Reasoning):
            return self._add_text("reasoning", delta.text, ())
        if isinstance(delta, CallBegun):
            item = _item("fc", "function_call", call_id=_name("call"), name=delta.name)
            events = self._close("completed")
            return [*events, _told("added", self._begin({**item, "arguments": ""}))]
        return [self._add_arguments(delta)]

    def finish(self, status: str) -> list[Object]:
        """Nothing follows; `status` is that of the last item, "completed" or "incomplete".  An
        answer that says nothing is an empty message."""
        events = [] if self.items else self._add_text("message", "", ())
        return [*events, *self._close(status)]

    def _add_text(self, kind: str, text: str, tokens: Sequence[Token]) -> list[Object]:
        opened, events = self._open, []
        if opened is None or opened.item["type"] != kind:
            events = self._close("completed")
            opened = self._begin_text(kind)
            events += [_told("added", opened), opened.event("content_part.added", part=opened.part)]
        if not text:
            return events
        opened.texts.append(text)
        if kind == "reasoning":
            return [*events, opened.event("reasoning_text.delta", delta=text)]
        logprobs = of_chat(tokens)["content"] if tokens else []
        opened.logprobs += logprobs
        return [*events, opened.event("output_text.delta", delta=text, logprobs=logprobs)]

    def _add_arguments(self, delta: CallArguments) -> Object:
        opened = self._open
        if opened is None or opened.part is not None:
            raise RuntimeError("This is a bug in the parser of answers: arguments without a call")
        opened.texts.append(delta.text)
        return opened.event("function_call_arguments.delta", delta=delta.text)

    def _begin_text(self, kind: str) -> "_Open":
        if kind == "reasoning":
            part: Object = {"type": "reasoning_text", "text": ""}
            return self._begin(_item("rs", kind, summary=[], content=[]), part)
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return self._begin(_item("msg", kind, role="assistant", content=[]), part)

    def _begin(self, item: Object, part: Object | None = None) -> "_Open":
        self._open = _Open(item, len(self.items), part)
        self.items.append(item)
        return self._open

    def _close(self, status: str) -> list[Object]:
        opened, self._open = self._open, None
        if opened is None:
            return []
        text, part, item = "".join(opened.texts), opened.part, opened.item
        item["status"] = status
        if part is None:
            item["arguments"] = text
            done = opened.event("function_call_arguments.done", name=item["name"], arguments=text)
            return [done, _told("done", opened)]
        part = {**part, "text": text}
        if item["type"] == "reasoning":
            done = opened.event("reasoning_text.done", text=text)
        else:
            part["logprobs"] = opened.logprobs
            done = opened.event("output_text.done", text=text, logprobs=opened.logprobs)
        item["content"] = [part]
        return [done, opened.event("content_part.done", part=part), _told("done", opened)]


def _told(what: str, opened: _Open) -> Object:
    kind = f"response.output_item.{what}"
    return {"type": kind, "output_index": opened.index, "item": dict(opened.item)}


def _item(prefix: str, kind: str, **fields: Any) -> Object:
    return {"id": _name(prefix), "type": kind, "status": "in_progress", **fields}


def _name(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
