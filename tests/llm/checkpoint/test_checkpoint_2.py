"""Directories of MindFormers' Checkpoint 2.0, and in which ways they can be wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.storage.fingerprint import fingerprint

MATRIX = np.arange(24, dtype=np.float32).reshape(4, 6)


def write(root: Path) -> Path:
    """A matrix in 2 x 3 parts, each in the file of its rank, and a state of the optimizer."""
    directory = root / "iteration_00000007"
    directory.mkdir()
    storage = {}
    chunks = [{"global_offset": [i], "local_shape": [2, 2]} for i in range(6)]
    for i in range(6):
        row, column = divmod(i, 3)
        part = MATRIX[row * 2 : row * 2 + 2, column * 2 : column * 2 + 2]
        file = f"model-{i:07d}-0000006.safetensors"
        save_file({"w": np.ascontiguousarray(part)}, directory / file)
        storage[f"('w', ({i},))"] = [{"file_name": file, "storage_rank": i}]
    entry = {"global_shape": [4, 6], "axis_fragmentations": [2, 3], "chunk": chunks}
    state = {"global_shape": [4, 6], "axis_fragmentations": [1, 1]}
    state["chunk"] = [{"global_offset": [0], "local_shape": [4, 6]}]
    storage["('adam_m.w', (0,))"] = [{"file_name": "opt-0000000-0000001.safetensors"}]
    metadata = {"state_dict_metadata": {"w": entry, "adam_m.w": state}, "storage_data": storage}
    (directory / "metadata.json").write_text(json.dumps(metadata))
    (directory / "common.json").write_text(json.dumps({"global_step": 7}))
    (root / "latest_checkpointed_iteration.txt").write_text("7\n")
    (root / "config.json").write_text("{}")
    return directory


def test_parts_are_joined_along_all_axes(tmp_path: Path) -> None:
    write(tmp_path)
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.names() == ["w"]
    np.testing.assert_array_equal(checkpoint.f32("w"), MATRIX)


def test_an_iteration_is_opened_by_its_own_path(tmp_path: Path) -> None:
    directory = write(tmp_path)
    (directory / "config.json").write_text("{}")
    np.testing.assert_array_equal(Checkpoint.open(directory).f32("w"), MATRIX)


def test_an_unhealthy_training_is_logged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (write(tmp_path) / "common.json").write_text('{"ckpt_status": 1}')
    Checkpoint.open(tmp_path)
    assert "training was not healthy (ckpt_status)" in capfd.readouterr().err


def test_chunks_change_the_fingerprint(tmp_path: Path) -> None:
    root = tmp_path / "model"
    root.mkdir()
    directory = write(root)
    before = fingerprint(root, tmp_path)
    save_file({"w": np.ones((2, 2), np.float32)}, directory / "model-0000003-0000006.safetensors")
    assert fingerprint(root, tmp_path) != before


def change(edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        metadata = json.loads((directory / "metadata.json").read_text())
        edit(metadata)
        (directory / "metadata.json").write_text(json.dumps(metadata))

    return apply


def of_matrix(**fields: Any) -> Callable[[Path], None]:
    return change(lambda metadata: metadata["state_dict_metadata"]["w"].update(fields))


def stored(name: str) -> Callable[[Path], None]:
    entry = [{"file_name": name}]
    return change(lambda metadata: metadata["storage_data"].update({"('w', (2,))": entry}))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (stored("../model.safetensors"), r"part 2 names '../model.safetensors', expected a \*"),
        (change(lambda m: m["storage_data"].pop("('w', (2,))")), "part 2 names None, expected"),
        (change(lambda m: m.pop("storage_data")), "has no state_dict_metadata and no storage"),
        (of_matrix(global_shape=[2**60, 6]), "'w' has no global_shape, axis_fragmentations and"),
        (of_matrix(global_shape=[8, 6]), r"'w' has chunk .* expected shape \[4, 2\]"),
        (of_matrix(axis_fragmentations=[1, 3]), r"'w' has chunk .* expected shape \[4, 2\]"),
        (
            change(lambda m: m["state_dict_metadata"]["w"]["chunk"].pop()),
            "'w' lacks 1 of 6 parts",
        ),
        (lambda d: (d / "model-0000002-0000006.safetensors").unlink(), "safetensors is missing"),
        (lambda d: (d.parent / "latest_checkpointed_iteration.txt").write_text("x"), "has 'x', ex"),
        (lambda d: (d.parent / "latest_checkpointed_iteration.txt").write_text("8"), "has '8', ex"),
    ],
)
def test_a_damaged_directory_is_refused(
    tmp_path: Path, damage: Callable[[Path], None], problem: str
) -> None:
    damage(write(tmp_path))
    with pytest.raises(StartError, match=problem):
        Checkpoint.open(tmp_path)
