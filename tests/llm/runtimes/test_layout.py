"""Positions and slots of a step's tokens, computed by hand, and steps that do not fit."""

import pytest

from mindspore_serving.errors import InvalidInputs, ServingError
from mindspore_serving.llm.runtimes.layout import RunnerLimits, check_copies, lay_out
from mindspore_serving.llm.step import Row, Step

LIMITS = RunnerLimits(block_size=4, num_blocks=10, vocab_size=50, max_model_len=12)


def test_slots_follow_the_block_table() -> None:
    """Positions 3, 4, 5 of blocks [7, 2]: the last place of block 7, the first two of block 2."""
    layout = lay_out(Step((Row([10, 11, 12], 3, [7, 2, 9], 1),)), LIMITS)
    assert layout.token_ids.tolist() == [10, 11, 12]
    assert layout.positions.tolist() == [3, 4, 5]
    assert layout.slots.tolist() == [31, 8, 9]
    (span,) = layout.spans
    assert (span.begin, span.end, span.start, span.length) == (0, 3, 3, 6)
    assert span.blocks.tolist() == [7, 2]


def test_last_tokens_of_each_row_have_logits() -> None:
    rows = (Row([1, 2, 3], 0, [0], 2), Row([4], 0, [1], 0), Row([5, 6], 0, [2], 1))
    layout = lay_out(Step(rows), LIMITS)
    assert layout.rows.tolist() == [1, 2, 5]
    assert [(span.begin, span.end) for span in layout.spans] == [(0, 3), (3, 4), (4, 6)]


def test_a_step_without_rows_is_empty() -> None:
    layout = lay_out(Step(()), LIMITS)
    assert layout.spans == ()
    assert len(layout.token_ids) == len(layout.rows) == 0


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (Row([], 0, [0], 0), "row 1 has no tokens"),
        (Row([1], 4, [0], 1), "row 1 has 1 blocks, expected at least 2 for 5 tokens"),
        (Row([1], 0, [10], 1), r"row 1 has blocks 10..10, expected 0..9"),
        (Row([1], 0, [-1], 1), r"row 1 has blocks -1..-1, expected 0..9"),
        (Row([1], 12, [0, 1, 2, 3], 1), r"row 1 has positions 12..12, expected 0..11"),
        (Row([1], -1, [0], 1), r"row 1 has positions -1..-1, expected 0..11"),
        (Row([1], 0, [0], 2), "row 1 requests 2 logits of 1 tokens"),
        (Row([1], 0, [0], 1, adapter=3), "row 1 has adapter 3"),
    ],
)
def test_a_row_that_does_not_fit_is_named(row: Row, text: str) -> None:
    with pytest.raises(ServingError, match=text):
        lay_out(Step((Row([1], 0, [0], 1), row)), LIMITS)


@pytest.mark.parametrize("token", [-1, 50])
def test_a_token_that_is_not_in_the_vocabulary_is_named(token: int) -> None:
    step = Step((Row([1], 0, [0], 1), Row([2, token], 0, [1], 1)))
    with pytest.raises(InvalidInputs, match=rf"row 1 has token id {token}, expected 0..49"):
        lay_out(step, LIMITS)


@pytest.mark.parametrize("copy", [(0, 10), (-1, 0)])
def test_a_copy_out_of_the_cache_is_refused(copy: tuple[int, int]) -> None:
    with pytest.raises(ServingError, match="which has 10 blocks"):
        check_copies(Step((), ((0, 1), copy)), 10)
