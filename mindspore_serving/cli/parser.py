"""Parser of a subcommand, with a short `--help` of the common options and a full `--help-all`.

It knows rows of options, not which options there are.
"""

import argparse
import shutil
from collections.abc import Iterable, Sequence
from copy import copy
from textwrap import fill
from typing import Any, NoReturn

from mindspore_serving.core.params import OptionRow

MAX_WIDTH = 100  # columns of a line
_TEXT_COLUMN = 30  # where the texts of options begin
_MAX_IN_USAGE = 12  # options that the line "usage:" lists
_ARGUMENTS: dict[Any, str] = {"*": "[{} ...]", "?": "[{}]", None: "{}"}  # in it, by `nargs`


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Formatter of help with lines of at most `MAX_WIDTH` columns, as wide as the terminal is."""

    def __init__(self, prog: str) -> None:
        width = min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns)
        super().__init__(prog, max_help_position=_TEXT_COLUMN, width=width)

    def wrap(self, text: str) -> str:
        """Wrap a paragraph to the width of the current section."""
        width = self._width - self._current_indent
        return fill(text, width, subsequent_indent="  ", break_on_hyphens=False)


class CommandParser(argparse.ArgumentParser):
    """Argument parser whose errors are two lines, and whose help can leave out rare options."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(formatter_class=HelpFormatter, **arguments)
        self._rows: dict[str, OptionRow] = {}  # by the `dest` of their actions
        self._is_parsing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse options and arguments in any order, which argparse does not do with [URL] NAME."""
        if self._is_parsing or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._is_parsing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_parsing = False

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\nSee '{self.prog} --help'.\n")

    def describe(self, rows: Sequence[OptionRow]) -> None:
        """Take help texts from `rows`; if some of them are common, `--help` shows only those."""
        self._rows = {row.name: row for row in rows}
        if len(rows) > _MAX_IN_USAGE:
            arguments = (action for action in self._actions if not action.option_strings)
            words = (_ARGUMENTS[a.nargs].format(a.metavar) for a in arguments)
            self.usage = " ".join(["%(prog)s [OPTIONS]", *words])

    def format_help(self) -> str:
        return self._format_help(is_full=not any(row.is_common for row in self._rows.values()))

    def format_full_help(self) -> str:
        """Return the help with all options and their details."""
        return self._format_help(is_full=True)

    def _format_help(self, *, is_full: bool) -> str:
        formatter = HelpFormatter(self.prog)
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for group in self._action_groups:
            actions = group._group_actions
            shown = actions if is_full else [each for each in actions if self._is_common(each)]
            formatter.start_section(group.title)
            formatter.add_arguments(map(self._with_details, shown) if is_full else shown)
            if rare := [each for each in actions if each not in shown]:
                formatter.add_text(formatter.wrap(f"also {_names(rare)}"))
            formatter.end_section()
        return formatter.format_help()

    def _is_common(self, action: argparse.Action) -> bool:
        row = self._rows.get(action.dest)
        return row is None or row.is_common or not row.group

    def _with_details(self, action: argparse.Action) -> argparse.Action:
        detailed = copy(action)
        if row := self._rows.get(action.dest):
            detailed.help = help_text(row, is_full=True)
        return detailed


class HelpAll(argparse.Action):
    """Option that prints the full help of its parser."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{**arguments, "nargs": 0, "default": argparse.SUPPRESS})

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, CommandParser)
        print(parser.format_full_help(), end="")
        parser.exit()


def help_text(row: OptionRow, *, is_full: bool = False) -> str:
    """Return the help of an option: meaning, choices and default; in full also its details."""
    text = row.meaning
    if row.choices and row.metavar:  # else argparse shows the choices
        *first, last = map(str, row.choices)
        text += f": {', '.join(first)} or {last}"
    if row.kind == list[str] and not row.parse:
        text += "; repeatable"
    if row.shown_default:
        text += f" (default: {row.shown_default})"
    if is_full:
        page = row.page.partition("#")[0].removesuffix(".md")
        more = [row.details, page and f"See mindspore-serving docs {page}"]
        text = ". ".join([text, *filter(None, more)])
    return text.replace("%", "%%").replace("`", "")


def _names(actions: Iterable[argparse.Action]) -> str:
    return ", ".join(action.option_strings[-1] for action in actions)
