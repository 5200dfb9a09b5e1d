"""Buckets of graphs, and the assignment of steps to them, computed by hand."""

import numpy as np
import pytest

pytest.importorskip("mindspore")

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.layout import Layout, RunnerLimits, lay_out
from mindspore_serving.llm.runtimes.mindspore.graph import Buckets, buckets
from mindspore_serving.llm.step import Row, Step

LIMITS = RunnerLimits(block_size=4, num_blocks=60, vocab_size=50, max_model_len=40)
BUCKETS = Buckets({1: (1, 2, 4), 16: (1,), 32: (1,)})


def layout(*counts: int) -> Layout:
    """A step of sequences with `counts` new tokens, after 2 of the cache, in blocks of their own.

    Token ids are 0, 1, 2 and so on."""
    first = np.cumsum((0, *counts)).tolist()
    return lay_out(
        Step(
            tuple(
                Row(range(first[i], first[i] + count), 2, range(10 * i, 10 * i + 10), 1)
                for i, count in enumerate(counts)
            )
        ),
        LIMITS,
    )


def test_buckets_cover_decode_batches_and_prompt_lengths() -> None:
    config = EngineConfig(max_num_seqs=6, max_num_batched_tokens=100)
    assert buckets(config, 2048).batches == {
        1: (1, 2, 4, 8), 16: (1,), 32: (1,), 64: (1,), 128: (1,),
    }  # fmt: skip
    assert buckets(config, 40).batches == {1: (1, 2, 4, 8), 16: (1,), 32: (1,), 64: (1,)}


def test_draft_verification_has_buckets_of_all_batch_sizes() -> None:
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=16, num_speculative_tokens=4)
    assert buckets(config, 2048).batches == {1: (1, 2), 8: (1, 2), 16: (1,)}
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=16, num_speculative_tokens=15)
    assert buckets(config, 2048).batches == {1: (1, 2), 16: (1, 2)}


def test_largest_graphs_come_first_to_allocate_memory_once() -> None:
    assert BUCKETS.shapes == [(1, 32), (1, 16), (4, 1), (2, 1), (1, 1)]


def test_sequences_go_into_the_smallest_graph_that_holds_them() -> None:
    calls = list(BUCKETS.calls(layout(1, 17, 1, 5, 1)))
    found = [([span.begin for span in call.spans], call.width, call.padding) for call in calls]
    assert found == [([0, 18, 24], 1, 1), ([19], 16, 0), ([1], 32, 0)]


def test_more_sequences_than_the_largest_graph_has_take_several_calls() -> None:
    calls = list(BUCKETS.calls(layout(1, 1, 1, 1, 1, 1)))
    assert [(len(call.spans), call.padding) for call in calls] == [(4, 0), (2, 0)]


def test_padding_is_computed_like_the_last_sequence_and_not_written() -> None:
    step = layout(1, 1, 1)
    (call,) = BUCKETS.calls(step)
    assert call.pick(step.token_ids).tolist() == [[0], [1], [2], [2]]
    assert call.blocks(4).tolist() == [[0], [10], [20], [20]]
    mask = call.mask(4, 0)
    assert mask.shape == (4, 1, 5)
    assert (mask[3] == mask[2]).all()
    rows, places = call.locate(step.rows)
    assert rows.tolist() == [0, 1, 2]
    assert places.tolist() == [0, 1, 2]


def test_a_row_wider_than_every_graph_is_refused() -> None:
    with pytest.raises(ServingError, match=r"33 new tokens, .* accept at most 32"):
        list(BUCKETS.calls(layout(33)))
