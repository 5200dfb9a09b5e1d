"""`mindspore-serving chat`: talk with a model of a running server, in the terminal.

With a prompt, or with text on the standard input, one question and its answer; else a conversation.
"""

import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving.cli import openai
from mindspore_serving.cli.endpoint import Endpoint, to_endpoint
from mindspore_serving.cli.settings import ChatSettings
from mindspore_serving.errors import InvalidInputs, ServingError

_HELP = """\
/reset          forget the conversation
/system TEXT    begin again with this system prompt; without TEXT: with none
/quit           leave, as Ctrl-D does
Ctrl-C          stop the answer"""
_LEAST = 0.1  # seconds; pieces that came all at once have no speed
# What would move the cursor, change colours or ring in the text of a model.
_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def run(settings: ChatSettings) -> int:
    """Talk until the user leaves, or answer one prompt.  Raises ServingError if it cannot."""
    endpoint = to_endpoint(settings.url, settings)
    is_conversation = not settings.prompt and sys.stdin.isatty()
    prompt = settings.prompt or ("" if is_conversation else _piped())
    if not is_conversation and not prompt:
        raise InvalidInputs("there is no prompt: give one with --prompt, or on the standard input")
    model = openai.choose(endpoint, settings.model, settings.timeout)
    given = {name: getattr(settings, name) for name in ("temperature", "top_p", "max_tokens")}
    sampling = {name: value for name, value in given.items() if value is not None}
    talk = Conversation(endpoint, model, sampling, settings.timeout, settings.system)
    if is_conversation:
        _converse(talk)
    else:
        talk.ask(prompt, _say)
        print()
    return 0


@dataclass(slots=True)
class Conversation:
    """The messages so far, and the model.  `sampling` are fields of the request."""

    endpoint: Endpoint
    model: str
    sampling: dict[str, Any]
    timeout: float
    system: str = ""
    turns: list[dict[str, str]] = field(default_factory=list)

    def ask(self, text: str, say: Callable[[str], None]) -> str:
        """Give each piece of the answer to `say`; returns its times and counts as text.

        A question without an answer is forgotten, a part of one is kept.  Raises ServingError.
        """
        asked = {"role": "user", "content": text}
        system = [{"role": "system", "content": self.system}] * bool(self.system)
        body = {"model": self.model, "messages": [*system, *self.turns, asked], **self.sampling}
        answer: list[str] = []
        times = _Times(time.monotonic())
        try:
            with closing(openai.stream_chat(self.endpoint, body, self.timeout)) as deltas:
                for delta in deltas:
                    times.note(delta)
                    answer.append(delta.text)
                    say(delta.text)
        finally:
            if any(answer):
                self.turns += [asked, {"role": "assistant", "content": "".join(answer)}]
        return times.text()


@dataclass(slots=True)
class _Times:
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

    def text(self) -> str:
        if not self.first:
            return "the answer is empty"
        found = [f"first word after {self.first - self.sent:.2f} s"]
        if self.usage is not None:
            count = int(self.usage["completion_tokens"])
            found.insert(0, f"{count} tokens")
            if count > 1 and self.last >= self.first + _LEAST:
                found.append(f"{(count - 1) / (self.last - self.first):.1f} tokens/s")
        if self.finish_reason == "length":
            found.append("cut off: no more tokens allowed")
        return ", ".join(found)


def _piped() -> str:
    try:
        return sys.stdin.read().strip()
    except UnicodeDecodeError as error:
        raise InvalidInputs(f"the standard input is no text: {error}") from error


def _converse(talk: Conversation) -> None:
    with suppress(ImportError):
        import readline  # noqa: F401  input() then has history and editing
    _note(f"{talk.model} at {talk.endpoint.url}.  /help shows what else can be typed.")
    while True:
        try:
            text = input("> " if sys.stdout.isatty() else "").strip()
        except EOFError:
            _note("")
            return
        except KeyboardInterrupt:
            _note("\n(/quit or Ctrl-D leaves)")
            continue
        if text == "/quit":
            return
        if text.startswith("/"):
            _note(_command(talk, text))
        elif text:
            _turn(talk, text)


def _command(talk: Conversation, text: str) -> str:
    """Do what `text` says; returns what to show."""
    word, _, rest = text.partition(" ")
    if word == "/system":
        talk.turns.clear()
        talk.system = rest.strip()
        return "(a new conversation, " + ("with this system prompt)" if talk.system else "without)")
    if word == "/reset":
        talk.turns.clear()
        return "(a new conversation)"
    return _HELP if word == "/help" else f"{word} is no command.\n{_HELP}"


def _turn(talk: Conversation, text: str) -> None:
    try:
        note = talk.ask(text, _say)
    except KeyboardInterrupt:
        note = "stopped"
    except ServingError as error:
        print(f"\nmindspore-serving: {error}", file=sys.stderr)
        return
    print()
    _note(f"({note})")


def _note(text: str) -> None:
    """What is no answer: not on a standard output that is kept."""
    print(text, file=sys.stdout if sys.stdout.isatty() else sys.stderr)


def _say(text: str) -> None:
    sys.stdout.write(text.translate(_CONTROL) if sys.stdout.isatty() else text)
    sys.stdout.flush()
