"""The bar: on a terminal alone, and whole lines even where work stops early."""

import io
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
    assert "work [               " in shown
    assert shown.endswith(f"work [{'#' * 30}] 2/2\n")


def test_a_bar_that_is_left_early_says_where_and_ends_its_line(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    items = progress("abcd", "work")
    next(items)
    next(items)
    items.close()
    assert terminal.getvalue().endswith("] 1/4\n")


def test_a_file_sees_nothing(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(progress([1, 2], "work")) == [1, 2]
    assert stream.getvalue() == ""
