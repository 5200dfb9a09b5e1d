import io
import os
import pickle
import warnings
import zipfile

import numpy as np
import pytest

from mindspore_serving.backends.run import run_model
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.errors import StageFailed, StartError

pytestmark = pytest.mark.torch


def f32(*rows):
    return np.array(rows, np.float32)


def test_an_exported_program_runs_with_any_batch(torch_files, opened):
    backend = opened("pytorch", torch_files / "open.pt2")
    for count in (1, 2, 5):
        x = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
        total, difference = backend.run([x, 2 * x])
        np.testing.assert_array_equal(total, 3 * x)
        np.testing.assert_array_equal(difference, -x)


def test_exported_signature_has_names_types_dynamic_dimensions(torch_files, opened):
    (signature,) = opened("pytorch", torch_files / "open.pt2").signature
    assert [(spec.name, spec.dtype, spec.shape) for spec in signature.inputs] == [
        ("x", np.float32, (-1, 2)),
        ("y", np.float32, (-1, 2)),
    ]
    assert [(spec.name, spec.shape) for spec in signature.outputs] == [
        ("sum", (-1, 2)),
        ("difference", (-1, 2)),
    ]


def test_a_fixed_batch_is_in_the_signature(torch_files, opened):
    (signature,) = opened("pytorch", torch_files / "fixed4.pt2").signature
    assert [spec.shape for spec in signature.inputs] == [(4, 2), (4, 2)]


def test_batches_beyond_the_files_limit_are_several_runs(torch_files, opened):
    backend = opened("pytorch", torch_files / "most8.pt2")
    assert [one.max_rows for one in backend.signature[0].inputs] == [8, 8]
    rows = [(f32(i, i), f32(1, 2)) for i in range(21)]
    outcomes = run_model(backend, DeclaredModel("m", "pytorch", ("most8.pt2",)), 0, rows)
    for i, (total, difference) in enumerate(outcomes):
        np.testing.assert_array_equal(total, [i + 1, i + 2])
        np.testing.assert_array_equal(difference, [i - 1, i - 2])


def test_keyword_inputs_work_and_bfloat16_outputs_are_float32(torch_files, opened):
    backend = opened("pytorch", torch_files / "named.pt2")
    assert [spec.name for spec in backend.signature[0].inputs] == ["x", "offset"]
    assert backend.signature[0].outputs[0].dtype == np.float32
    (result,) = backend.run([f32([1, 2, 3], [4, 5, 6]), f32(10)[:1]])
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, f32([16], [25]))


def test_a_bfloat16_input_is_taken_as_float32(torch_files, opened):
    backend = opened("pytorch", torch_files / "bfloat16_input.pt2")
    assert backend.signature[0].inputs[0].dtype == np.float32
    (result,) = backend.run([f32([1, 2.5], [3, 1.00390625])])
    np.testing.assert_array_equal(result, f32([1, 2.5], [3, 1]))


@pytest.mark.parametrize("file", ["in_place.pt2", "script.pt"])
def test_a_program_that_writes_to_its_input_leaves_the_array_alone(torch_files, opened, file):
    backend = opened("pytorch", torch_files / file)
    given = f32([1, 2], [3, 4])
    (result,) = backend.run([given])
    np.testing.assert_array_equal(result, f32([4, 6], [8, 10]))
    np.testing.assert_array_equal(given, f32([1, 2], [3, 4]))


def test_torchscript_tells_names_and_the_number_of_outputs_alone(torch_files, opened):
    (signature,) = opened("pytorch", torch_files / "script.pt").signature
    assert [(spec.name, spec.dtype, spec.shape) for spec in signature.inputs] == [("x", None, None)]
    assert len(signature.outputs) == 1


def test_read_only_arrays_are_accepted_without_a_warning(torch_files, opened):
    backend = opened("pytorch", torch_files / "open.pt2")
    x = np.frombuffer(f32([1, 2]).tobytes(), np.float32).reshape(1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(backend.run([x, x])[0], f32([2, 4]))


@pytest.mark.parametrize("file", ["weights.pt", "old_weights.pt"])
def test_a_file_of_torch_save_is_refused_as_a_pickle(torch_files, opened, file):
    with pytest.raises(StartError, match="it is a pickle.*torch.export.save.*torch.jit.save"):
        opened("pytorch", torch_files / file)


class Harm:
    """Unpickling it makes a directory."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def _rewritten(path, target, changes, additions=()):
    """A copy of the archive at `path` with some files replaced or added."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        top = old.namelist()[0].partition("/")[0]
        for name in old.namelist():
            content = old.read(name)
            for suffix, change in changes.items():
                if name.endswith(suffix):
                    content = change(content)
            new.writestr(name, content)
        for name, content in additions:
            new.writestr(f"{top}/{name}", content)


def test_a_pickle_inside_an_exported_program_is_not_unpickled(torch_files, opened, tmp_path):
    import torch

    buffer = io.BytesIO()
    torch.save(Harm(tmp_path / "mark"), buffer)
    path = tmp_path / "sample.pt2"
    changes = {"data/sample_inputs/model.pt": lambda _: buffer.getvalue()}
    _rewritten(torch_files / "open.pt2", path, changes)
    with pytest.raises(StartError, match="Load model failed, model file: .*sample.pt2"):
        opened("pytorch", path)
    assert not (tmp_path / "mark").exists()


def test_an_object_constant_inside_an_exported_program_is_not_unpickled(
    torch_files, opened, tmp_path
):
    path = tmp_path / "constant.pt2"
    config = (
        b'{"config": {"c": {"path_name": "opaque_obj_0", "is_param": false, "use_pickle": true}}}'
    )
    changes = {"data/constants/model_constants_config.json": lambda _: config}
    pickled = ("data/constants/opaque_obj_0", pickle.dumps(Harm(tmp_path / "mark")))
    _rewritten(torch_files / "open.pt2", path, changes, [pickled])
    with pytest.raises(StartError, match="contains a pickled Python object"):
        opened("pytorch", path)
    assert not (tmp_path / "mark").exists()


def test_the_environment_is_as_before_after_a_load(torch_files, opened, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    opened("pytorch", torch_files / "open.pt2")
    assert os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] == "1"
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def test_missing_truncated_and_garbage_files_are_errors(torch_files, opened, tmp_path):
    whole = (torch_files / "open.pt2").read_bytes()
    for name, content in {"garbage": b"what is this?", "cut": whole[: len(whole) // 2]}.items():
        (tmp_path / f"{name}.pt2").write_bytes(content)
    for name in ("missing", "garbage", "cut"):
        with pytest.raises(StartError, match="Load model failed, model file: ") as caught:
            opened("pytorch", tmp_path / f"{name}.pt2")
        assert f"{name}.pt2" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_missing_gpu_is_an_error(torch_files, opened):
    with pytest.raises(StartError, match=r"PyTorch sees \d+ GPUs, but device id 99 was requested"):
        opened("pytorch", torch_files / "open.pt2", device_type="gpu", device_id=99)


def test_failed_run_gives_the_reason(torch_files, opened):
    backend = opened("pytorch", torch_files / "open.pt2")
    with pytest.raises(StageFailed, match="Guard failed"):
        backend.run([np.ones((1, 3), np.float32)] * 2)


@pytest.mark.gpu
def test_an_exported_program_runs_on_a_gpu(torch_files, opened):
    backend = opened("pytorch", torch_files / "open.pt2", device_type="gpu")
    np.testing.assert_array_equal(backend.run([f32([1, 2]), f32([3, 4])])[0], f32([4, 6]))
