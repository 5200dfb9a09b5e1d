"""The bar: on a terminal alone, and whole lines even where work stops early."""

import io
import re
import sys

from mindspore_serving.llm.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_how_much_is_done(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert list(progress("ab", "work")) == ["a", "b"]
    shown = terminal.getvalue()
    assert "work:   0%" in shown
    assert "| 2/2 [" in shown
    assert shown.endswith("\n")


def test_a_bar_that_is_left_early_says_where_and_ends_its_line(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    items = progress("abcd", "work")
    next(items)
    next(items)
    items.close()
    assert re.search(r"work: .* 1/4 \[[^\n]*\n$", terminal.getvalue())


def test_a_file_sees_nothing(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(progress([1, 2], "work")) == [1, 2]
    assert stream.getvalue() == ""
