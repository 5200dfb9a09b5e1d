"""Options of a model whose ranks are on several machines: layers by speed, and what is refused."""

import pytest

from mindspore_serving.core.placement import GroupCredentials, RankPlacement
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.parallel import machines
from mindspore_serving.llm.parallel.machines import layers_by_speed, set_placement
from mindspore_serving.llm.parallel.part import divide_layers
from mindspore_serving.llm.runtimes import fitting
from mindspore_serving.llm.runtimes.fitting import check_fits
from mindspore_serving.llm.runtimes.main_memory import MainMemory

NOBODY = GroupCredentials(b"", b"")


@pytest.fixture(autouse=True)
def unplaced():
    yield
    machines._placed.clear()


def placement(counts, num_stages, speeds=()):
    addresses = ("127.0.0.2:1",) * (len(counts) - 1)
    names = tuple("abcd"[: len(counts)])
    return RankPlacement(counts, num_stages, names, addresses, speeds, NOBODY)


@pytest.mark.parametrize(
    ("num_layers", "numbers", "expected"),
    [
        (32, [10, 22], [10, 22]),
        (32, [1, 1], [16, 16]),
        (3, [1, 100, 1], [1, 1, 1]),  # at least a layer each
        (8, [100, 1], [7, 1]),
        (10, [50, 25, 25], [5, 3, 2]),
        (4, [0, 0], [1, 3]),
    ],
)
def test_layers_are_divided_in_relation_to_numbers(num_layers, numbers, expected):
    layers = divide_layers(num_layers, numbers)
    assert [len(each) for each in layers] == expected
    assert [layer for each in layers for layer in each] == list(range(num_layers))


@pytest.mark.parametrize(
    ("speeds", "stages", "expected"),
    [
        ([2e9, 1e9], [1, 1], "67:33"),
        ([1.2e9, 1e9], [1, 1], ""),  # about as fast
        ([2e9, 1e9], [2, 1], ""),  # two stages share the faster one
        ([4e9, 1e9], [2, 1], "67:67:33"),
    ],
)
def test_faster_machines_get_more_layers(speeds, stages, expected):
    assert layers_by_speed(speeds, stages) == expected


def test_layers_follow_the_speeds_unless_the_operator_says_how(monkeypatch):
    monkeypatch.setattr(machines, "measure_speed", lambda: 1e9)
    placed, config = placement((1, 1), 2, (3e9,)), EngineConfig(pipeline_parallel=2)
    assert set_placement(placed, "/", config, divides=True).stage_layers == "25:75"
    assert set_placement(placed, "/", config, divides=False).stage_layers == ""
    config = EngineConfig(pipeline_parallel=2, stage_layers="1:2")
    assert set_placement(placed, "/", config, divides=True).stage_layers == "1:2"


def test_fewer_stages_than_requested_hold_all_layers():
    config = EngineConfig(pipeline_parallel=3, tensor_parallel=2, stage_layers="1:2:3")
    config = set_placement(placement((2,), 1), "/", config, divides=True)
    assert (config.pipeline_parallel, config.stage_layers) == (1, "")
    assert machines.read_placement() is None  # all ranks are here


def test_a_placement_of_other_ranks_is_refused():
    with pytest.raises(StartError, match="the model has 6 ranks, but 4 were placed"):
        set_placement(placement((2, 2), 2), "/", EngineConfig(tensor_parallel=3), divides=True)


def test_weights_that_exceed_the_free_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "read_main_memory", lambda: MainMemory(4 << 20, 3 << 20))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(5 << 20)
    check_fits(tmp_path, 0.5)
    with pytest.raises(StartError, match="100% of the weights .*, 5 MiB, do not fit into the 3 "):
        check_fits(tmp_path)
