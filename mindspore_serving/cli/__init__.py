"""The command `mindspore-serving`: serve models, call methods, look after servers and machines.

It parses arguments and selects the subcommand, whose module is imported when it runs, so that
`--help` and `--version` are quick. docs/cli.md has the exit statuses.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module

from mindspore_serving import extras, log
from mindspore_serving.cli import commands, wrong_words
from mindspore_serving.cli.options import parsed_values, to_settings
from mindspore_serving.cli.parser import CommandParser
from mindspore_serving.cli.settings import ServeSettings
from mindspore_serving.cli.urls import check_first
from mindspore_serving.errors import InvalidField, InvalidInputs, ServingError
from mindspore_serving.process.entry import end_quickly, turn_off_telemetry

# Errors of arguments or a configuration file.  Their subclasses are errors of servers' answers.
_WRONG = (InvalidInputs, InvalidField)
_INSTEAD_OF_PATH = ("config", "upstream", "pull_prefixes")  # settings with which `serve` needs none


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (default: the process's arguments); return the exit status."""
    turn_off_telemetry()  # for `doctor` and `convert`
    end_quickly()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our errors have its messages
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    words = list(sys.argv[1:] if argv is None else argv)
    parser = commands.parser()
    if not words:
        parser.print_help(sys.stderr)
        return 2
    arguments = _parse(parser, words)
    try:
        settings = _settings(arguments)
        status = _run(arguments.command, settings)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of our output, as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ServingError as error:
        status = 2 if type(error) in _WRONG else 1
        return _fail(arguments.command, str(error), status)
    except ModuleNotFoundError as error:
        return _fail(arguments.command, extras.missing(error, arguments.command))
    except KeyboardInterrupt:
        return 130


def _parse(parser: CommandParser, words: list[str]) -> argparse.Namespace:
    """Parse the command line; end with status 2 and what to write instead if it is wrong."""
    name, rest = words[0], words[1:]
    command = commands.BY_NAME.get(name)
    if command is None and not name.startswith("-"):
        parser.error(wrong_words.of_command(name))
    subparser = commands.parsers(parser).get(name, parser)
    if command is not None and (text := wrong_words.of_other_programs(command, rest)):
        subparser.error(text)
    arguments: argparse.Namespace
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        subparser.error(wrong_words.of_unknown(arguments.settings, unknown))
    is_empty = not arguments.paths if arguments.command == "serve" else False
    if is_empty and not any(name in arguments for name in _INSTEAD_OF_PATH):
        subparser.error("the following arguments are required: PATH, --upstream or --config")
    return arguments


def _fail(command: str, text: str, status: int = 1) -> int:
    """Print an error; for commands that log it is a line of the log, too."""
    tell = log.tell if command in ("serve", "worker") else partial(print, file=sys.stderr)
    tell(f"mindspore-serving: {text}")
    return status


def _settings(arguments: argparse.Namespace) -> object:
    """Return the settings of the subcommand.

    Raises ServingError for a wrong option or configuration file.
    """
    values = parsed_values(arguments.settings, arguments)
    check_first(arguments.settings, values)
    if "config" in arguments:
        from mindspore_serving.cli import config_file

        values = config_file.read(arguments.config) | values
    return to_settings(arguments.settings, values)


def _run(command: str, settings: object) -> int:
    with ExitStack() as running:
        if isinstance(settings, ServeSettings):
            from mindspore_serving.cli import early_worker

            running.enter_context(early_worker.started(settings))
        module, function = commands.BY_NAME[command].target
        status: int = getattr(import_module(f"{__name__}.{module}"), function)(settings)
        return status
