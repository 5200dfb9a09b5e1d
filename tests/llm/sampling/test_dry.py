"""DRY: penalties of repeated sequences, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.sampling.dry import MAX_LENGTH
from mindspore_serving.llm.sampling.edits import SampleRow

TEXTS = [b"a", b"b", b"c", b"d", b"x\n", b"e"]  # token 4 has a breaker


def row_of(prompt, output=(), **params) -> SampleRow:
    return SampleRow(
        SamplingParams(**{"dry_multiplier": 0.5, "dry_base": 2.0, **params}),
        list(prompt), list(output), (), len(output), 1, token_bytes=TEXTS.__getitem__,
    )  # fmt: skip


def penalties(row: SampleRow) -> list[float]:
    logits = np.zeros(len(TEXTS), np.float32)
    row.edit(logits)
    return (-logits).tolist()


@pytest.mark.parametrize(
    ("context", "params", "expected"),
    [
        # "a b" was followed by c: 0.5 * 2 ** (2 - 2)
        ([0, 1, 2, 0, 1], {}, {2: 0.5}),
        # "a b c" was followed by d: 0.5 * 2 ** (3 - 2)
        ([0, 1, 2, 3, 0, 1, 2], {}, {3: 1.0}),
        # "b" alone is shorter than allowed
        ([0, 1, 2, 3, 1], {}, {}),
        ([0, 1, 2, 3, 1], {"dry_allowed_length": 1}, {2: 0.5}),
        # the longest repetition of a token counts, and each token has its own
        ([3, 1, 2, 0, 1, 2, 5, 1, 3, 0, 1], {"dry_allowed_length": 1}, {2: 1.0, 3: 0.5}),
        # the text overlaps itself: "a a" was followed by a
        ([0, 0, 0], {}, {0: 0.5}),
        # the breaker ends the sequence: only "b" repeats
        ([0, 4, 1, 2, 0, 4, 1], {}, {}),
        ([0, 4, 1, 2, 0, 4, 1], {"dry_allowed_length": 1}, {2: 0.5}),
        ([0, 4, 1, 2, 0, 4, 1], {"dry_sequence_breakers": ["z"]}, {2: 1.0}),
        # a breaker itself has no penalty
        ([0, 1, 4, 0, 1], {}, {}),
        # only the last tokens are looked at
        ([0, 1, 2, 0, 1], {"dry_penalty_last_n": 4}, {}),
        ([0, 1, 2, 0, 1], {"dry_penalty_last_n": 5}, {2: 0.5}),
        ([0, 1, 2, 0, 1], {"dry_penalty_last_n": 0}, {}),
        ([0, 1, 2, 0, 1], {"dry_multiplier": 0.0}, {}),
        ([0], {}, {}),
    ],
)
def test_penalty_grows_with_the_repetition(context, params, expected) -> None:
    expected = [expected.get(token_id, 0) for token_id in range(len(TEXTS))]
    for split in range(1, len(context) + 1):
        assert penalties(row_of(context[:split], context[split:], **params)) == expected


def test_drafts_are_part_of_the_text() -> None:
    row = row_of([0, 1, 2], [0])
    assert penalties(row) == [0] * 6
    assert penalties(row.after([1])) == [0, 0, 0.5, 0, 0, 0]


def test_long_repetition_leaves_the_logits_finite() -> None:
    found = penalties(row_of([0] * 3000, dry_base=10.0, dry_multiplier=100.0))
    assert np.isfinite(found).all()
    assert found[0] > 1e29


def by_hand(context: list[int], allowed: int) -> list[float]:
    """Each earlier place and each length, one by one."""
    longest = dict.fromkeys(range(len(TEXTS)), 0)
    for end in range(1, len(context)):
        length = 0
        while length < min(end, MAX_LENGTH) and context[end - 1 - length] == context[-1 - length]:
            if context[-1 - length] == 4:
                break
            length += 1
        longest[context[end]] = max(longest[context[end]], length)
    longest[4] = 0
    return [0.5 * 2.0 ** (n - allowed) if n >= allowed else 0 for n in longest.values()]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 3))
def test_every_text_has_the_penalties_of_a_plain_search(context, allowed) -> None:
    found = penalties(row_of(context, dry_allowed_length=allowed))
    assert found == pytest.approx(by_hand(context, allowed))
