"""Slices of ranks are merged as MindSpore merges them, and incomplete ones are refused."""

import json
import os
import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.mindformers.slices import find_ranks, read_slices
from mindspore_serving.llm.checkpoint.mindformers.strategy import read_strategies
from mindspore_serving.llm.checkpoint.weights import SLICES
from tests.llm.mindspore_forms import write_strategy

mindspore = pytest.importorskip("mindspore")


pytestmark = pytest.mark.mindspore

# (devices, tensor map, optimizer step, optimizer size)
LAYOUTS = {
    "rows": ([4, 2], [0, -1], 0, 0),
    "columns": ([4, 2], [-1, 0], 0, 0),
    "grid": ([4, 2], [1, 0], 0, 0),
    "reversed_grid": ([4, 2], [0, 1], 0, 0),
    "whole": ([4, 2], [-1, -1], 0, 0),
    "optimizer": ([4, 2], [0, -1], 2, 4),
    "part_of_optimizer": ([4, 2], [0, -1], 2, 2),
    "columns_and_optimizer": ([4, 2], [-1, 0], 2, 4),
    "whole_and_optimizer": ([8], [-1, -1], 1, 8),
    "two_axes_of_optimizer": ([2, 2, 2], [0, -1], 2, 4),
    "inner_optimizer": ([2, 2, 2], [2, -1], 1, 2),
    "nested": ([2, 2, 2], [[2, 0], -1], 0, 0),
    "nested_inner": ([2, 2, 2], [-1, [1, 0]], 0, 0),
}


@pytest.fixture
def affinity() -> Iterator[None]:
    """MindSpore's merging binds its process to some cores."""
    cores = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, cores)


def write_ranks(directory: Path) -> dict[str, np.ndarray]:
    """Eight ranks with a part of each array, cut by the layouts that are read."""
    random = np.random.default_rng(0)
    strategy = directory / "strategy" / "ckpt_strategy_rank_0.ckpt"
    write_strategy(strategy, 0, LAYOUTS)
    layouts = read_strategies([strategy])[0]
    arrays = {n: random.normal(size=(16, 8)).astype(np.float32) for n in LAYOUTS}
    for rank in range(8):
        parts = {}
        for name, array in arrays.items():
            part = array
            counts, place = layouts[name].counts(2), layouts[name].part_index(rank, 2)
            for axis in range(2):
                part = np.split(part, counts[axis], axis)[place[axis]]
            parts[name] = np.ascontiguousarray(part)
        path = directory / f"rank_{rank}" / "net-1_2.safetensors"
        path.parent.mkdir()
        save_file(parts, path)
    return arrays


@pytest.mark.usefixtures("affinity")
def test_slices_are_merged_as_by_mindspore(tmp_path: Path) -> None:
    arrays = write_ranks(tmp_path)
    strategy = str(tmp_path / "strategy" / "ckpt_strategy_rank_0.ckpt")
    mindspore.unified_safetensors(str(tmp_path), strategy, str(tmp_path / "merged"))
    (merged,) = (tmp_path / "merged").glob("part*.safetensors")
    ours = read_slices(tmp_path, find_ranks(tmp_path, SLICES), SLICES)
    theirs = load_file(merged)
    assert set(theirs) == set(ours) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(theirs[name].reshape(array.shape), array, name)
        np.testing.assert_array_equal(ours[name].bits.view(np.float32), array, name)


def test_a_tensor_is_read_from_any_rank_with_a_replica(tmp_path: Path) -> None:
    """Without redundancy only one replica is saved."""
    arrays = write_ranks(tmp_path)
    seen = set()
    layouts = read_strategies([tmp_path / "strategy" / "ckpt_strategy_rank_0.ckpt"])[0]
    for rank in reversed(range(8)):
        path = tmp_path / f"rank_{rank}" / "net-1_2.safetensors"
        keys = {name: (name, layouts[name].part_index(rank, 2)) for name in arrays}
        kept = {n: a for n, a in load_file(path).items() if keys[n] not in seen}
        seen |= set(keys.values())
        save_file(kept, path)
    ours = read_slices(tmp_path, find_ranks(tmp_path, SLICES), SLICES)
    for name, array in arrays.items():
        np.testing.assert_array_equal(ours[name].bits.view(np.float32), array, name)


def test_the_last_step_of_a_rank_is_read(tmp_path: Path) -> None:
    arrays = write_ranks(tmp_path)
    for rank in range(8):
        path = tmp_path / f"rank_{rank}" / "net-1_2.safetensors"
        new = {name: array + 1 for name, array in load_file(path).items()}
        save_file(new, path.with_name("net-1_10.safetensors"))
    ours = read_slices(tmp_path, find_ranks(tmp_path, SLICES), SLICES)
    np.testing.assert_array_equal(ours["grid"].bits.view(np.float32), arrays["grid"] + 1)


def without_strategy(directory: Path) -> None:
    shutil.rmtree(directory / "strategy")


def without_rank(directory: Path) -> None:
    shutil.rmtree(directory / "rank_5")


def damaged(directory: Path) -> None:
    (directory / "strategy" / "ckpt_strategy_rank_0.ckpt").write_bytes(b"\x1a\xff\x01")


def of_other_devices(directory: Path) -> None:
    path = directory / "strategy" / "ckpt_strategy_rank_0.ckpt"
    write_strategy(path, 0, {**LAYOUTS, "rows": ([4, 2], [2, -1], 0, 0)})


def cut_unevenly(directory: Path) -> None:
    path = directory / "rank_3" / "net-1_2.safetensors"
    save_file({**load_file(path), "rows": np.zeros((3, 8), np.float32)}, path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (without_strategy, r"slices of 8 ranks but no strategy, expected .* strategy/\*\.ckpt"),
        (without_rank, r"'.*' lacks 1 of 8 slices, those of rank_5"),
        (damaged, "ckpt_strategy_rank_0.ckpt is damaged, or no strategy file"),
        (of_other_devices, r"'rows' has devices \[4, 2\] with a map \[\[2\], \[-1\]\]"),
        (cut_unevenly, "'rows' has slices of different shapes or types"),
    ],
)
def test_slices_that_do_not_fit_are_refused(tmp_path: Path, change: object, problem: str) -> None:
    write_ranks(tmp_path)
    change(tmp_path)  # type: ignore[operator]
    with pytest.raises(StartError, match=problem):
        read_slices(tmp_path, find_ranks(tmp_path, SLICES), SLICES)


def test_a_merged_strategy_has_all_stages(tmp_path: Path) -> None:
    for stage in range(2):
        file = tmp_path / "strategy" / f"ckpt_strategy_rank_{stage}.ckpt"
        write_strategy(file, stage, {"a": LAYOUTS["rows"], f"b{stage}": LAYOUTS["grid"]})
    expected = read_strategies(sorted((tmp_path / "strategy").iterdir()))
    merged = tmp_path / "merged.ckpt"
    mindspore.merge_pipeline_strategys(str(tmp_path / "strategy"), str(merged))
    assert read_strategies([merged]) == expected
    assert {stage: set(names) for stage, names in expected.items()} == {
        0: {"a", "b0"},
        1: {"a", "b1"},
    }


def test_strategies_in_json_and_protobuf_are_equal(tmp_path: Path) -> None:
    """MindSpore's converter of JSON is the reference."""
    names = [name for name, layout in LAYOUTS.items() if "nested" not in name]
    items = {}
    for name in names:
        devices, tensor_map, step, size = LAYOUTS[name]
        items[name] = {"dev_matrix": devices, "tensor_map": tensor_map, "param_split_shape": []}
        items[name] |= {"field": 0, "opt_weight_shard_step": step, "opt_weight_shard_size": size}
    content = {"current_stage": 0, "parallel_layout_item": items}
    content["parallel_strategy_item"] = {"MatMul-op0": {"stage": 1, "parallel_strategy": {}}}
    path = tmp_path / "strategy.json"
    path.write_text(json.dumps(content))
    theirs = mindspore.build_searched_strategy(str(path))
    ours = read_strategies([path])[1]
    assert set(theirs) == set(ours) == set(names)
    write_strategy(tmp_path / "a.ckpt", 1, {name: LAYOUTS[name] for name in names})
    assert ours == read_strategies([tmp_path / "a.ckpt"])[1]


@pytest.mark.parametrize("item", [{"dev_matrix": "a"}, [], {"dev_matrix": [2], "tensor_map": 0}])
def test_a_damaged_strategy_in_json_is_refused(tmp_path: Path, item: object) -> None:
    path = tmp_path / "strategy.json"
    path.write_text(json.dumps({"parallel_layout_item": {"a": item}, "parallel_strategy_item": {}}))
    with pytest.raises(StartError, match="strategy.json is damaged, or no strategy file"):
        read_strategies([path])


def test_only_the_tensor_in_use_is_in_memory(tmp_path: Path) -> None:
    size = 512 * 256 * 4
    names = [f"w{i}" for i in range(16)]
    layouts = {name: ([2], [0, -1], 0, 0) for name in names}
    write_strategy(tmp_path / "strategy" / "ckpt_strategy_rank_0.ckpt", 0, layouts)
    for rank in range(2):
        (tmp_path / f"rank_{rank}").mkdir()
        parts = {name: np.full((256, 256), rank, np.float32) for name in names}
        save_file(parts, tmp_path / f"rank_{rank}" / "net-1_2.safetensors")
    tracemalloc.start()
    try:
        tensors = read_slices(tmp_path, find_ranks(tmp_path, SLICES), SLICES)
        total = sum(tensors[name].bits.nbytes for name in names)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == 16 * size
    assert peak < 1.5 * size
