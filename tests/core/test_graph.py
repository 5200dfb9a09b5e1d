from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.graph import Method, Stage, StageKind

FUNCTION = Stage(StageKind.FUNCTION, "s.f", (0,), (1, 2), "f")
MODEL = Stage(StageKind.MODEL, "m", (1,), (3,), "m")


def test_a_method_has_only_models_if_each_stage_is_a_model():
    assert Method("m", ("x",), ("y",), (MODEL,), (3,)).has_only_models
    assert not Method("m", ("x",), ("y",), (FUNCTION, MODEL), (3,)).has_only_models


def test_a_method_without_stages_has_not_only_models():
    assert not Method("m", ("x",), ("y",), (), (0,)).has_only_models


def test_workers_beyond_the_devices_are_extra():
    assert Deployment("d", "s", device_ids=(0, 1), num_parallel_workers=5).num_extra_workers == 3
    assert Deployment("d", "s", num_parallel_workers=2).num_extra_workers == 2


def test_fewer_parallel_workers_than_devices_means_none_extra():
    assert Deployment("d", "s", device_ids=(0, 1), num_parallel_workers=1).num_extra_workers == 0
