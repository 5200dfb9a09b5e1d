import numpy as np
import pytest

from mindspore_serving.core.declaration import DistributedSpec
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.distributed import rank_table
from mindspore_serving.distributed.gang import Gang
from mindspore_serving.distributed.stages import StageInputs
from mindspore_serving.errors import InvalidInputs
from tests.distributed import tables

SCRIPT, OTHER = "script", "another script"


def graph(inputs=(4, 3), outputs=(4, 5), dtype=np.float32, name="x"):
    kind = np.dtype(dtype)
    given = () if inputs is None else (TensorSpec(name, kind, inputs),)
    return Signature(given, (TensorSpec("y", kind, outputs),))


def make(rank_size=2, stage_size=1, **spec):
    machines = [(f"10.0.0.{m}", min(8, rank_size - m)) for m in range(0, rank_size, 8)]
    ranks = rank_table.parse(tables.text(*machines))
    return Gang("big", DistributedSpec(rank_size, stage_size, **spec), ranks)


def taken(*args, **spec):
    gang = make(*args, **spec)
    gang.take(SCRIPT, [rank.number for rank in gang.ranks])
    return gang


def test_a_gang_is_complete_when_all_ranks_have_joined_in_any_order():
    gang = taken(3)
    gang.join(2, (graph(),))
    gang.join(0, (graph(),))
    assert (gang.is_complete, gang.missing) == (False, [1])
    gang.join(1, (graph(),))
    assert (gang.is_complete, gang.missing) == (True, [])


def test_signature_of_a_gang_has_first_inputs_and_last_outputs():
    gang = taken(8, 8, with_batch_dim=False)
    for number in range(8):
        gang.join(number, (graph((2, number + 3), (2, number + 4), name=f"x{number}"),))
    (signature,) = gang.signature
    assert signature.inputs[0].shape == (2, 3)
    assert signature.outputs[0].shape == (2, 11)
    assert [stage.source for stage in gang.routes[0]] == [StageInputs.REQUEST] + [
        StageInputs.PREVIOUS
    ] * 7


def test_a_table_that_does_not_fit_the_declaration_makes_no_gang():
    with pytest.raises(InvalidInputs, match="is not a multiple of stage_size"):
        make(8, 3)


def refused(gang, number, *graphs):
    was = gang.missing
    with pytest.raises(InvalidInputs) as caught:
        gang.join(number, graphs)
    assert gang.missing == was
    return str(caught.value)


def test_ranks_that_are_unknown_or_there_already_are_refused():
    gang = taken()
    gang.join(0, (graph(),))
    assert "rank 2 is unknown: the rank table has ranks 0 to 1" in refused(gang, 2, graph())
    assert "rank -1 is unknown" in refused(gang, -1, graph())
    assert "rank 0 has joined already" in refused(gang, 0, graph())
    assert "rank 1 has no model" in refused(gang, 1)


def test_only_ranks_that_a_script_took_may_join():
    assert "rank 0 was not reserved by a script before" in refused(make(), 0, graph())


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [([1, 2], "rank 1 is reserved already"), ([2, 2], "twice"), ([3], "rank 3 is unknown")],
)
def test_a_script_takes_ranks_that_are_free(numbers, problem):
    gang = make(3)
    gang.take(SCRIPT, [0, 1])
    with pytest.raises(InvalidInputs, match=problem):
        gang.take(OTHER, numbers)
    gang.take(OTHER, [2])  # nothing was taken by the refused one


def test_ranks_of_a_script_that_has_gone_can_be_taken_again():
    gang = taken(2)
    gang.join(0, (graph(),))
    assert gang.release(SCRIPT) == [0]
    gang.leave(0)
    gang.take(OTHER, [0, 1])
    gang.join(0, (graph(),))
    assert gang.release(SCRIPT) == []


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ((graph(), graph()), "rank 1 has 2 sub-graphs, rank 0 has 1"),
        ((graph((4, 7)),), "of sub-graph 0, rank 1 has x float32 [4, 7], rank 0 has x float32 [4"),
        ((graph(outputs=(4, 9)),), "the outputs of ranks of a stage should be the same"),
        ((graph(dtype=np.int32),), "the inputs of ranks of a stage should be the same"),
        ((graph((8, 3), (8, 5)),), "the batch size 8 of rank 1 is not the 4 of rank 0"),
        ((graph((4, 3), (2, 5)),), "The batch size 2 of model output 0 does not match current"),
        ((graph((), (4, 5)),), "cannot be empty"),
    ],
)
def test_a_rank_that_disagrees_is_refused(other, problem):
    gang = taken()
    gang.join(0, (graph(),))
    assert problem in refused(gang, 1, *other)
    gang.join(1, (graph(),))


def test_without_a_batch_dimension_any_shape_goes():
    gang = taken(with_batch_dim=False)
    gang.join(0, (graph((), (7,)),))
    gang.join(1, (graph((), (7,)),))
    assert gang.is_complete


@pytest.mark.parametrize("stage_size", [1, 2])
def test_inputs_without_a_batch_dimension_may_have_any_size(stage_size):
    shapes = {"x": (4, 3), "table": (7,), "y": (4, 5)}
    x, table, y = (TensorSpec(name, np.dtype("f4"), shape) for name, shape in shapes.items())
    gang = taken(8, stage_size, without_batch_dim_inputs=(1,))
    for number in range(8):
        gang.join(number, (Signature((x, table), (y,)),))
    assert gang.is_complete


def test_a_later_stage_has_the_batch_size_of_the_first():
    gang = taken(8, 2)
    for number in range(4):
        gang.join(number, (graph(),))
    assert "the batch size 8 of rank 4 is not the 4 of rank 0" in refused(
        gang, 4, graph((8, 3), (8, 5))
    )


def test_a_later_stage_may_have_no_inputs():
    gang = taken(8, 2)
    for number in range(8):
        gang.join(number, (graph(None if number >= 4 else (4, 3)),))
    assert [stage.source for stage in gang.routes[0]] == [StageInputs.REQUEST, StageInputs.NOTHING]


def test_the_last_rank_is_refused_when_the_stages_do_not_fit_together():
    gang = taken(8, 8)
    for number in range(7):
        gang.join(number, (graph(),))
    assert "the inputs of stage 7" in refused(gang, 7, graph((4, 99), name="h"))
    assert not gang.is_complete


def test_every_sub_graph_has_its_own_route():
    gang = taken(8, 2)
    for number in range(8):
        second = graph(None) if number >= 4 else graph()
        gang.join(number, (graph(), second))
    assert [[stage.source for stage in route] for route in gang.routes] == [
        [StageInputs.REQUEST, StageInputs.REQUEST],
        [StageInputs.REQUEST, StageInputs.NOTHING],
    ]
