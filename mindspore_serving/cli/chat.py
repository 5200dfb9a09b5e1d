"""`mindspore-serving chat`: talk with a model of a running server, in the terminal.

With a prompt, or with text on the standard input, one question and its answer; else a conversation.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from mindspore_serving.cli import openai
from mindspore_serving.cli.conversation import Conversation
from mindspore_serving.cli.endpoint import to_endpoint
from mindspore_serving.cli.node_settings import ChatSettings
from mindspore_serving.cli.terminal import Lines, Screen, history_file
from mindspore_serving.errors import InvalidInputs, ServingError, did_you_mean

_QUIT = "/quit"


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
    if settings.load:
        talk.load(Path(settings.load))
        talk.system = settings.system or talk.system
    screen = Screen()
    if is_conversation:
        _converse(talk, screen, history_file() if settings.history else None)
        return 0
    talk.ask(prompt, screen.say)
    screen.end_answer()
    return 0


def _piped() -> str:
    try:
        return sys.stdin.read().strip()
    except UnicodeDecodeError as error:
        raise InvalidInputs(f"the standard input is no text: {error}") from error


def _converse(talk: Conversation, screen: Screen, history: Path | None) -> None:
    screen.note(f"{talk.model} at {talk.endpoint.url}.  /help shows what else can be typed.")
    lines = _lines(screen, history)
    while True:
        try:
            text = lines.message().rstrip()
        except EOFError:
            screen.note("")
            return
        except KeyboardInterrupt:
            screen.note("\n(/quit or Ctrl-D leaves)")
            continue
        except UnicodeDecodeError as error:
            screen.fail(error)
            continue
        if text == _QUIT:
            return
        if text.startswith("/"):
            _command(talk, screen, text)
        elif text:
            _turn(talk, screen, text)


def _lines(screen: Screen, history: Path | None) -> Lines:
    try:
        return Lines(screen, history)
    except OSError as error:
        screen.note(f"(no history is kept: {error})")
        return Lines(screen, None)


def _turn(talk: Conversation, screen: Screen, text: str) -> None:
    try:
        note = talk.ask(text.strip(), screen.say)
    except KeyboardInterrupt:
        note = "stopped"
    except ServingError as error:
        screen.end_answer()
        screen.fail(error)
        return
    screen.end_answer()
    screen.note(f"({note})")


# --- what begins with "/" -----------------------------------------------------------------------


def _command(talk: Conversation, screen: Screen, text: str) -> None:
    word, _, rest = text.partition(" ")
    if word not in _COMMANDS:
        screen.note(f"{word} is no command{did_you_mean(word, _COMMANDS)}\n{_help(talk, '')}")
        return
    try:
        screen.note(_COMMANDS[word][1](talk, rest.strip()))
    except ServingError as error:
        screen.fail(error)
    except KeyboardInterrupt:
        screen.note("(stopped)")


def _help(talk: Conversation, rest: str) -> str:
    rows = [
        *((f"{word} {names}", text) for word, (names, _, text) in _COMMANDS.items()),
        (_QUIT, "leave, as Ctrl-D does"),
        ('"""', "begins and ends a message of several lines"),
        ("Ctrl-C", "stop the answer, on the server too; the conversation is kept"),
    ]
    return "\n".join(f"{name:<16}{text}" for name, text in rows)


def _reset(talk: Conversation, rest: str) -> str:
    talk.begin()
    return "(a new conversation)"


def _system(talk: Conversation, rest: str) -> str:
    talk.begin()
    talk.system = rest
    return "(a new conversation, " + ("with this system prompt)" if rest else "without)")


def _model(talk: Conversation, rest: str) -> str:
    if not rest:
        names = openai.models(talk.endpoint, talk.timeout)
        return "\n".join(f"{'*' if name == talk.model else ' '} {name}" for name in names)
    talk.model = openai.choose(talk.endpoint, rest, talk.timeout)
    return f"({talk.model} answers now)"


def _save(talk: Conversation, rest: str) -> str:
    path = _path(rest) if rest else talk.file
    if path is None:
        raise InvalidInputs("/save needs the name of a file")
    talk.save(path)
    return f"(saved in {path})"


def _load(talk: Conversation, rest: str) -> str:
    if not rest:
        raise InvalidInputs("/load needs the name of a file")
    talk.load(_path(rest))
    last = talk.turns[-1]["content"] if talk.turns else ""
    return f"{last}\n(loaded {len(talk.turns)} messages)"


def _path(text: str) -> Path:
    return Path(os.path.expanduser(text))


_COMMANDS: dict[str, tuple[str, Callable[[Conversation, str], str], str]] = {
    "/help": ("", _help, "this list"),
    "/reset": ("", _reset, "forget the conversation"),
    "/system": ("TEXT", _system, "begin again with this system prompt; without TEXT: with none"),
    "/model": ("NAME", _model, "go on with this model; without NAME: which there are"),
    "/save": ("FILE", _save, "write the conversation as JSON; without FILE: where it was before"),
    "/load": ("FILE", _load, "go on with a conversation of a file"),
}
