"""Each mistake of requests.txt is answered as the table says, word for word."""

import pytest

from tests.e2e.harness import Calls
from tests.mistakes.asking import Row, answer_of, rows

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("row", [*rows()], ids=lambda row: row.name)
def test_a_mistake_is_answered_as_the_table_says(calls: Calls, row: Row) -> None:
    assert answer_of(calls, row) == row.answer
