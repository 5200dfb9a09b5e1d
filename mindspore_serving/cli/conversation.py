"""Conversation of `chat`: its messages, the request for the next answer, and its files."""

import json
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindspore_serving.cli import openai
from mindspore_serving.cli.endpoint import Endpoint
from mindspore_serving.errors import InvalidInputs

_MIN_SECONDS = 0.1  # shorter answers came all at once and have no speed
_ROLES = ("system", "user", "assistant", "tool")


@dataclass(slots=True)
class Conversation:
    """Messages so far, and the model.

    `sampling` has fields of the request; `file` is the file that it was saved to or loaded from.
    """

    endpoint: Endpoint
    model: openai.ModelEntry
    sampling: dict[str, Any]
    timeout: float
    system: str = ""
    turns: list[dict[str, Any]] = field(default_factory=list)
    file: Path | None = None
    cut: str = ""  # why the last answer ended early, and what to do

    def ask(self, text: str, say: Callable[[openai.Delta], None]) -> str:
        """Pass each chunk of the answer to `say`; return times and counts as text.

        A question without an answer is dropped; a partial answer is kept. Raises ServingError.
        """
        question = {"role": "user", "content": text}
        answer: list[str] = []
        times = _Times(time.monotonic())
        try:
            stream = openai.stream_chat(self.endpoint, self._request(question), self.timeout)
            with closing(stream) as deltas:
                for delta in deltas:
                    times.note(delta)
                    answer.append(delta.text)
                    say(delta)
        finally:
            if any(answer):
                self.turns += [question, {"role": "assistant", "content": "".join(answer)}]
        self.cut = times.cut(self.sampling.get("max_tokens", self.model.max_tokens))
        return ", ".join(filter(None, (times.text(), self.cut)))

    def begin(self) -> None:
        """Drop the messages and the file."""
        self.turns.clear()
        self.file = None

    def save(self, path: Path) -> None:
        """Write the conversation as the body of a request, readable by its owner alone.

        Raises InvalidInputs if it cannot be written, or if `path` is another file that exists.
        """
        new = 0 if path == self.file else os.O_EXCL
        text = json.dumps(self._request(), indent=1, ensure_ascii=False) + "\n"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | new, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise InvalidInputs(f"{path} already exists: choose another name") from None
        except (OSError, UnicodeEncodeError) as error:
            raise InvalidInputs(f"cannot write {path}: {error}") from error
        self.file = path

    def load(self, path: Path) -> None:
        """Continue with the messages of a file and the current model.  Raises InvalidInputs."""
        messages = _read(path)
        is_system = messages[0]["role"] == "system"
        self.system = text_of(messages.pop(0)) if is_system else ""
        self.turns, self.file = messages, path

    def _request(self, *more: dict[str, str]) -> dict[str, Any]:
        system = [{"role": "system", "content": self.system}] * bool(self.system)
        messages = [*system, *self.turns, *more]
        limit = {"max_tokens": self.model.max_tokens}
        return {"model": self.model.name, "messages": messages, **limit, **self.sampling}


def text_of(message: dict[str, Any]) -> str:
    """Return the text of a message, without its images."""
    content = message["content"] or ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("type") == "text")


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the messages of a file, at least one, with their images and calls of tools.

    The web page saves the same files. Raises InvalidInputs.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        messages: list[dict[str, Any]] = [dict(message) for message in content["messages"]]
        texts = [text_of(message) for message in messages]
        is_complete = all(message["role"] in _ROLES for message in messages)
    except OSError as error:
        raise InvalidInputs(f"cannot read {path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_conversation(path) from error
    if not messages or not is_complete or not all(isinstance(text, str) for text in texts):
        raise _no_conversation(path)
    return messages


def _no_conversation(path: Path) -> InvalidInputs:
    return InvalidInputs(
        f'{path} is not a conversation: expected a JSON object with "messages", each with a "role" '
        f'({", ".join(_ROLES)}) and "content", a text or a list of texts and images'
    )


@dataclass(slots=True)
class _Times:
    """Times and counts of one answer."""

    sent: float
    first: float = 0.0
    last: float = 0.0
    usage: dict[str, Any] | None = None
    finish_reason: str = ""

    def note(self, delta: openai.Delta) -> None:
        if delta.text or delta.thought:
            self.last = time.monotonic()
            self.first = self.first or self.last
        self.usage = delta.usage or self.usage
        self.finish_reason = delta.finish_reason or self.finish_reason

    def cut(self, limit: int) -> str:
        """Return what to do about an answer that `limit` or the context has ended, else ""."""
        if self.finish_reason != "length":
            return ""
        if self.usage is not None and int(self.usage["completion_tokens"]) < limit:
            return "cut off, as the model's context is full: /reset begins a new conversation"
        return f"cut off at {limit} tokens: ask it to continue, or start with a larger --max-tokens"

    def text(self) -> str:
        if not self.first:
            return "the answer is empty"
        parts = [f"first word after {self.first - self.sent:.2f} s"]
        if self.usage is not None:
            count = int(self.usage["completion_tokens"])
            parts.insert(0, f"{count} tokens")
            if count > 1 and self.last >= self.first + _MIN_SECONDS:
                parts.append(f"{(count - 1) / (self.last - self.first):.1f} tokens/s")
        return ", ".join(parts)
