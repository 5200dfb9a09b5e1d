"""Texts about commands and options that do not exist: what to write instead."""

import os
from collections.abc import Sequence
from typing import Any

from mindspore_serving.cli import commands, other_names
from mindspore_serving.cli.commands import Command
from mindspore_serving.cli.options import flags
from mindspore_serving.cli.other_names import ENGINE_OPTION
from mindspore_serving.cli.settings import ServableSettings
from mindspore_serving.errors import did_you_mean

_SWITCHED_OFF = "--no-"


def of_command(word: str) -> str:
    """Return what to write instead of a word that is no command."""
    if os.path.exists(word) or "/" in word or "." in word:
        return (
            f"{word!r} is a path or a name: write 'mindspore-serving serve {word}' to serve it, or "
            f"'mindspore-serving run {word}' to chat with it"
        )
    names = ", ".join(commands.BY_NAME)
    return f"{other_names.of_command(word, commands.BY_NAME)}\nCommands are {names}."


def of_other_programs(command: Command, words: Sequence[str]) -> str:
    """Return what to write instead of the options of other programs in `words`, a line for each."""
    has_engine_option = any(word.startswith(ENGINE_OPTION) for word in words)
    names = _engine_names() if has_engine_option else ()
    known = flags(command.settings)
    return "\n".join(other_names.of_options(words, known, command.name, names))


def _engine_names() -> Sequence[str]:
    from mindspore_serving.core.tasks import TASK_OPTIONS
    from mindspore_serving.llm.config import OPTIONS

    return (*OPTIONS, *TASK_OPTIONS)


def of_unknown(kind: type[Any], unknown: Sequence[str]) -> str:
    """Return what to write instead of words that the parser of the settings `kind` left over."""
    text = f"unrecognized arguments: {' '.join(unknown)}"
    index = next((i for i, word in enumerate(unknown) if word.startswith("--")), None)
    if index is None:
        return text
    flag, equals, value = unknown[index].partition("=")
    if not equals and index + 1 < len(unknown) and not unknown[index + 1].startswith("-"):
        value = unknown[index + 1]
    names: dict[str, str] = {name: name for name in flags(kind)}
    if issubclass(kind, ServableSettings):
        names = _named_values(flags(kind), value) | names
    near = did_you_mean(flag, names)
    for name, written in names.items():
        near = near.replace(f"'{name}'", f"'{written}'") if written != name else near
    return text + near


def _named_values(options: Sequence[str], value: str) -> dict[str, str]:
    """Return options of the engine and limits as if they were options, and how they are written.

    `options` are those of the command. Without a `value` an option is switched on, or off by
    --no-NAME.
    """
    from mindspore_serving.core.language_limits import LANGUAGE_LIMITS
    from mindspore_serving.core.server_limits import LIMITS
    from mindspore_serving.llm.config import OPTIONS

    tables = {ENGINE_OPTION: OPTIONS, "--limit": {**LIMITS, **LANGUAGE_LIMITS}}
    names = {}
    for option, rows in tables.items():
        if option not in options:
            continue
        for name, row in rows.items():
            long = "--" + name.replace("_", "-")
            is_switch = row.kind is bool and not value
            names[long] = f"{option} {name}={'true' if is_switch else value or 'VALUE'}"
            if is_switch:
                names[_SWITCHED_OFF + long[2:]] = f"{option} {name}=false"
    return names
