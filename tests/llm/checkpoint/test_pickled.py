"""Pickled weights are read as the same weights in safetensors are; what is more than weights is
not."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.weights import Checkpoint

pytestmark = pytest.mark.torch
TENSORS = {
    "a.weight": torch.arange(12.0).reshape(3, 4),
    "turned": torch.arange(12, dtype=torch.bfloat16).reshape(3, 4).T,
    "half": torch.tensor([1.5, -2.0], dtype=torch.float16),
    "integers": torch.tensor([[1, -2]], dtype=torch.int8),
    "scalar": torch.tensor(7.0),
    "float8": torch.tensor([2.0, -4.0]).to(torch.float8_e4m3fn),
}


class Command:
    """What is done when a pickle with it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def check(checkpoint: Checkpoint) -> None:
    assert set(checkpoint.names()) == set(TENSORS)
    for name in ("a.weight", "turned", "half", "scalar"):
        assert checkpoint.shape(name) == tuple(TENSORS[name].shape)
        np.testing.assert_array_equal(checkpoint.f32(name), TENSORS[name].float().numpy())
    assert checkpoint.raw("integers")[0] == "I8"
    assert checkpoint.raw("integers")[2].tolist() == [[1, -2]]
    assert checkpoint.raw("float8")[0] == "F8_E4M3"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pth"])
def test_tensors_are_read_by_name(directory: Path, name: str) -> None:
    torch.save({**TENSORS, "epoch": 3}, directory / name)
    check(Checkpoint.open(directory))


def test_they_may_be_in_a_state_dict(directory: Path) -> None:
    torch.save({"state_dict": TENSORS, "epoch": 3}, directory / "pytorch_model.bin")
    check(Checkpoint.open(directory))


def test_an_index_names_several_files(directory: Path) -> None:
    weight_map = {}
    for number, (name, tensor) in enumerate(TENSORS.items()):
        file = f"pytorch_model-{number}.bin"
        torch.save({name: tensor}, directory / file)
        weight_map[name] = file
    index = directory / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    torch.save(TENSORS, directory / "training_args.bin")
    check(Checkpoint.open(directory))


def test_safetensors_beside_them_come_first(directory: Path) -> None:
    from safetensors.torch import save_file

    save_file({"other": torch.zeros(2)}, directory / "model.safetensors")
    torch.save(TENSORS, directory / "pytorch_model.bin")
    assert Checkpoint.open(directory).names() == ["other"]


def test_nothing_in_a_pickle_is_called(directory: Path) -> None:
    made = directory / "made"
    torch.save({**TENSORS, "command": Command(made)}, directory / "pytorch_model.bin")
    with pytest.raises(StartError, match=r"pytorch_model.bin cannot be read with weights_only"):
        Checkpoint.open(directory)
    assert not made.exists()


def test_a_tensor_is_not_larger_than_its_file(directory: Path) -> None:
    huge = torch.zeros(1).expand(2**40)
    torch.save({"huge": huge}, directory / "pytorch_model.bin")
    with pytest.raises(StartError, match="tensor 'huge' needs 4398046511104 bytes, more"):
        Checkpoint.open(directory)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([torch.zeros(1)], "holds a list, expected tensors by name"),
        ({"a": torch.zeros(1, dtype=torch.complex64)}, "'a' is torch.complex64, expected one of"),
        ({"a": torch.zeros(2, 2).to_sparse()}, "'a' is torch.float32.* dense"),
        ({"a": torch.zeros(2, device="meta")}, "'a' is torch.float32.* dense"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused(
    directory: Path, value: object, problem: str
) -> None:
    torch.save(value, directory / "pytorch_model.bin")
    with pytest.raises(StartError, match=problem):
        Checkpoint.open(directory)


def test_a_file_of_an_old_torch_is_refused_with_advice(directory: Path) -> None:
    path = directory / "pytorch_model.bin"
    torch.save(TENSORS, path, _use_new_zipfile_serialization=False)
    with pytest.raises(
        StartError, match="is older than torch 1.6 .* convert its weights to safetensors"
    ):
        Checkpoint.open(directory)


def test_a_pipe_in_place_of_a_file_is_not_read(directory: Path) -> None:
    """Opening it would wait for ever."""
    os.mkfifo(directory / "pytorch_model.bin")
    with pytest.raises(StartError, match=r"has no \*.safetensors"):
        Checkpoint.open(directory)
    index = directory / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))
    with pytest.raises(StartError, match=r"pytorch_model.bin is missing or no regular file"):
        Checkpoint.open(directory)


def test_a_file_that_is_cut_off_is_refused(directory: Path) -> None:
    path = directory / "pytorch_model.bin"
    torch.save(TENSORS, path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(StartError, match="pytorch_model.bin cannot be read"):
        Checkpoint.open(directory)


def test_without_torch_the_error_names_the_package(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(TENSORS, directory / "pytorch_model.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(StartError, match=r"pickled, needs torch, .* pip install .*torch"):
        Checkpoint.open(directory)


def test_a_torch_whose_unpickler_is_not_safe_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(TENSORS, directory / "pytorch_model.bin")
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    with pytest.raises(StartError, match=r"torch 2.5.1 cannot read safely; expected torch 2.6"):
        Checkpoint.open(directory)
