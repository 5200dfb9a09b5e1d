"""The tables of tested forms in docs/openai.md have every form, and a test in every cell."""

import pytest

from tests.llm import forms_table


@pytest.mark.parametrize("page", forms_table.PAGES)
def test_document_tables_match_the_tests(page: str) -> None:
    """`python -m tests.llm.forms_table` writes them."""
    assert forms_table.written(page) == forms_table.tables(forms_table.PAGES[page])


def test_every_form_is_recognised_streamed_and_held_by_a_test() -> None:
    for rows, tests in forms_table.ROWS:
        assert [key for key, letters in forms_table.cells(rows, tests).items() if not letters] == []
