import numpy as np
import pytest

from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.distributed.stages import GangPrediction, RankStage, StageInputs, plan
from mindspore_serving.errors import InvalidInputs, StageFailed

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int32)


def tensor(name, shape=(2, 3), dtype=FLOAT):
    return TensorSpec(name, dtype, shape)


X, Y, HIDDEN = tensor("x"), tensor("y"), tensor("hidden", (2, 8))


def graph(inputs, outputs=(Y,)):
    return Signature(tuple(inputs), tuple(outputs))


def sources(*stages):
    return [stage.source for stage in plan(stages, len(stages))]


def test_ranks_form_stages_and_the_last_rank_returns_the_result():
    assert plan([graph([X])] * 4, 1) == (RankStage(range(4), StageInputs.REQUEST, True),)
    first, second = plan([graph([X])] * 4, 2)
    assert (first.ranks, first.returns) == (range(2), False)
    assert (second.ranks, second.returns, second.last) == (range(2, 4), True, 3)


def test_a_later_stage_without_inputs_gets_none():
    assert sources(graph([X]), graph([])) == [StageInputs.REQUEST, StageInputs.NOTHING]


def test_a_later_stage_with_inputs_of_the_first_gets_request_inputs():
    assert sources(graph([X]), graph([X])) == [StageInputs.REQUEST, StageInputs.REQUEST]


def test_a_later_stage_with_other_inputs_gets_previous_outputs():
    stages = plan([graph([X], [HIDDEN]), graph([tensor("h", (2, 8))])], 2)
    assert [stage.source for stage in stages] == [StageInputs.REQUEST, StageInputs.PREVIOUS]
    assert stages[0].returns


def test_a_name_decides_where_shapes_do_not():
    assert sources(graph([X]), graph([tensor("h")]))[1] is StageInputs.PREVIOUS
    assert sources(graph([X], [HIDDEN]), graph([tensor("h")]))[1] is StageInputs.REQUEST


def test_unknown_dtypes_and_shapes_fit():
    unknown = TensorSpec("h", None, None)
    assert sources(graph([X], []), graph([unknown]))[1] is StageInputs.PREVIOUS
    assert sources(graph([X], [HIDDEN]), graph([tensor("h", (-1, 8))]))[1] is StageInputs.PREVIOUS


@pytest.mark.parametrize(
    "own", [tensor("h", (2, 9)), tensor("h", (2, 8), INT), tensor("h", (2, 8, 1))]
)
def test_inputs_that_come_from_nowhere_are_refused(own):
    with pytest.raises(InvalidInputs, match="the inputs of stage 1 .* neither those of stage 0"):
        plan([graph([X], [HIDDEN]), graph([own])], 2)


def test_a_prediction_of_a_single_stage_ends_when_all_ranks_have_answered():
    prediction = GangPrediction(plan([graph([X])] * 3, 1))
    assert [stage.ranks for stage in prediction.begin()] == [range(3)]
    prediction.answered(2, b"result")
    prediction.answered(0, b"")
    assert prediction.waiting == [1]
    prediction.answered(1, b"")
    assert prediction.is_settled
    assert prediction.outputs == b"result"


def test_a_chained_stage_starts_with_outputs_of_the_previous_stage():
    prediction = GangPrediction(plan([graph([X], [HIDDEN])] * 2 + [graph([HIDDEN])] * 2, 2))
    (first,) = prediction.begin()
    assert prediction.answered(0, b"") is None
    following = prediction.answered(1, b"hidden")
    assert following is not None
    assert following.ranks == range(2, 4)
    assert not prediction.is_settled
    prediction.answered(2, b"")
    prediction.answered(3, b"y")
    assert (prediction.outputs, prediction.is_settled) == (b"y", True)


def test_stages_that_wait_for_nothing_begin_together():
    prediction = GangPrediction(plan([graph([X]), graph([])], 2))
    assert [stage.source for stage in prediction.begin()] == [
        StageInputs.REQUEST,
        StageInputs.NOTHING,
    ]


def test_after_a_failure_nothing_more_begins_and_the_first_error_counts():
    prediction = GangPrediction(plan([graph([X], [HIDDEN])] * 2 + [graph([HIDDEN])] * 2, 2))
    prediction.begin()
    prediction.failed(0, StageFailed("no memory"))
    assert prediction.answered(1, b"hidden") is None
    assert prediction.is_settled
    assert str(prediction.error) == "no memory"


def test_an_answer_nobody_asked_for_is_refused():
    prediction = GangPrediction(plan([graph([X])] * 2, 1))
    prediction.begin()
    prediction.answered(0, b"")
    for rank in (0, 5):
        with pytest.raises(InvalidInputs, match="sent an answer that was not expected"):
            prediction.answered(rank, b"")
