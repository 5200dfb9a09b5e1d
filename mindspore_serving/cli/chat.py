"""`mindspore-serving chat`: talk with a model of a running server, in the terminal.

With --prompt, or text on the standard input, it prints one answer; else it is a conversation.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from mindspore_serving.cli import openai
from mindspore_serving.cli.chat_settings import ChatSettings, ConversationOptions
from mindspore_serving.cli.conversation import Conversation, text_of
from mindspore_serving.cli.endpoint import Endpoint, to_endpoint
from mindspore_serving.cli.terminal import Lines, Screen, history_file
from mindspore_serving.errors import InvalidInputs, ServingError, did_you_mean

_QUIT = ("/quit", "/exit", "/bye", "quit", "exit")


def run(settings: ChatSettings) -> int:
    """Run a conversation until the user leaves, or answer one prompt.  Raises ServingError."""
    endpoint = to_endpoint(settings.url, settings)
    return talk(settings, endpoint, read_prompt(settings))


def read_prompt(settings: ConversationOptions) -> str:
    """Return the only prompt, of --prompt or the standard input; "" for a conversation.

    Raises InvalidInputs if there is neither a prompt nor a terminal.
    """
    if settings.prompt:
        return settings.prompt
    if sys.stdin.isatty():
        return ""
    if prompt := _piped():
        return prompt
    raise InvalidInputs("there is no prompt: give --prompt, or text on the standard input")


def talk(settings: ChatSettings, endpoint: Endpoint, prompt: str) -> int:
    """Answer `prompt`, or run a conversation if it is "".  Raises ServingError."""
    model = openai.choose(endpoint, settings.model, settings.timeout)
    options = {name: getattr(settings, name) for name in ("temperature", "top_p", "max_tokens")}
    sampling = {name: value for name, value in options.items() if value is not None}
    conversation = Conversation(endpoint, model, sampling, settings.timeout, settings.system)
    if settings.load:
        conversation.load(Path(settings.load))
        conversation.system = settings.system or conversation.system
    screen = Screen()
    if not prompt:
        _converse(conversation, screen, history_file() if settings.history else None)
        return 0
    conversation.ask(prompt, screen.say)
    screen.end_answer()
    if conversation.cut and settings.max_tokens is None:
        screen.note(f"({conversation.cut})")
    return 0


def _piped() -> str:
    try:
        return sys.stdin.read().strip()
    except UnicodeDecodeError as error:
        raise InvalidInputs(f"the standard input is not text: {error}") from error


def _converse(conversation: Conversation, screen: Screen, history: Path | None) -> None:
    name, url = conversation.model.name, conversation.endpoint.url
    screen.note(f"{name} at {url}.  /help shows the commands, exit leaves.")
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
        if text in _QUIT:
            return
        if text.startswith("/"):
            _command(conversation, screen, text)
        elif text:
            _turn(conversation, screen, text)


def _lines(screen: Screen, history: Path | None) -> Lines:
    try:
        return Lines(screen, history)
    except OSError as error:
        screen.note(f"(no history is kept: {error})")
        return Lines(screen, None)


def _turn(conversation: Conversation, screen: Screen, text: str) -> None:
    try:
        note = conversation.ask(text.strip(), screen.say)
    except KeyboardInterrupt:
        note = "stopped"
    except ServingError as error:
        screen.end_answer()
        screen.fail(error)
        return
    screen.end_answer()
    screen.note(f"({note})")


# --- commands, which begin with "/" -------------------------------------------------------------


def _command(conversation: Conversation, screen: Screen, text: str) -> None:
    word, _, argument = text.partition(" ")
    if word not in _COMMANDS:
        screen.note(
            f"there is no command {word}{did_you_mean(word, _COMMANDS)}\n{_help(conversation, '')}"
        )
        return
    try:
        screen.note(_COMMANDS[word][1](conversation, argument.strip()))
    except ServingError as error:
        screen.fail(error)
    except KeyboardInterrupt:
        screen.note("(stopped)")


def _help(conversation: Conversation, argument: str) -> str:
    rows = [
        *((f"{word} {names}", text) for word, (names, _, text) in _COMMANDS.items()),
        ("/quit", "leave, as exit, quit, /exit, /bye and Ctrl-D do"),
        ('"""', "begins and ends a message of several lines"),
        ("Ctrl-C", "stop the answer, on the server too; the conversation is kept"),
    ]
    return "\n".join(f"{name:<16}{text}" for name, text in rows)


def _reset(conversation: Conversation, argument: str) -> str:
    conversation.begin()
    return "(new conversation)"


def _system(conversation: Conversation, argument: str) -> str:
    conversation.begin()
    conversation.system = argument
    return "(new conversation, " + (
        "with this system prompt)" if argument else "without system prompt)"
    )


def _model(conversation: Conversation, argument: str) -> str:
    if not argument:
        names = [each.name for each in openai.models(conversation.endpoint, conversation.timeout)]
        current = conversation.model.name
        return "\n".join(f"{'*' if name == current else ' '} {name}" for name in names)
    conversation.model = openai.choose(conversation.endpoint, argument, conversation.timeout)
    return f"({conversation.model.name} answers now)"


def _save(conversation: Conversation, argument: str) -> str:
    path = _path(argument) if argument else conversation.file
    if path is None:
        raise InvalidInputs("/save needs the name of a file")
    conversation.save(path)
    return f"(saved in {path})"


def _load(conversation: Conversation, argument: str) -> str:
    if not argument:
        raise InvalidInputs("/load needs the name of a file")
    conversation.load(_path(argument))
    last = text_of(conversation.turns[-1]) if conversation.turns else ""
    return f"{last}\n(loaded {len(conversation.turns)} messages)"


def _path(text: str) -> Path:
    return Path(os.path.expanduser(text))


_COMMANDS: dict[str, tuple[str, Callable[[Conversation, str], str], str]] = {
    "/help": ("", _help, "this list"),
    "/reset": ("", _reset, "forget the conversation"),
    "/system": ("TEXT", _system, "start over with this system prompt; without TEXT: with none"),
    "/model": ("NAME", _model, "continue with this model; without NAME: list the models"),
    "/save": ("FILE", _save, "write the conversation as JSON; without FILE: to the same file"),
    "/load": ("FILE", _load, "continue the conversation in a file"),
}
