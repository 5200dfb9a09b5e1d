"""Exports cells with MindSpore, and compares what OpenVINO makes of them with MindSpore itself."""

import os
import warnings
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset16 as op

from mindspore_serving.backends import ModelSource, open_backend
from mindspore_serving.core.declaration import DeclaredModel

_x = op.parameter((1,))
# Reads the limit below: with AVX2 OpenVINO's own normalisation ends the process.
ov.Core().compile_model(ov.Model([op.relu(_x)], [_x], "first"), "CPU")


@pytest.fixture(autouse=True)
def processor_limit():
    """Limit MindSpore, which reads it when it first convolves: AVX-512 makes that 30 times slower.

    Not when this file is imported: pytest-xdist may do that in a process that runs no test, and
    the processes that it starts would have the limit before OpenVINO looks at the processor."""
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")


@pytest.fixture(autouse=True)
def subnormal_numbers():
    """A kernel of MindSpore leaves the thread in a mode in which the smallest numbers are zero."""
    yield
    torch.set_flush_denormal(False)


def arrays_of(result):
    """The leaves of what a cell returns."""
    if isinstance(result, tuple | list):
        return [leaf for part in result for leaf in arrays_of(part)]
    if hasattr(result, "asnumpy"):
        array = result.asnumpy()
        return [array.astype(np.float32) if array.dtype.name == "bfloat16" else array]
    return [np.asarray(result)]


def export(cell, path, inputs, shapes=None):
    """Write `cell` to `path`; `shapes` are declared in place of those of the inputs."""
    import mindspore as ms

    tensors = [ms.Tensor(array) for array in inputs]
    declared = tensors
    if shapes is not None:
        declared = [
            ms.Tensor(shape=list(shape), dtype=tensor.dtype)
            for shape, tensor in zip(shapes, tensors, strict=True)
        ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its own code, while exporting
        ms.export(cell, *declared, file_name=str(Path(path).with_suffix("")), file_format="MINDIR")


def opened(path, **fields):
    """The file at `path` on OpenVINO."""
    return open_backend(
        ModelSource(DeclaredModel(Path(path).name, "mindir_openvino"), (str(path),))
    )


def run_by_mindspore(path, inputs):
    """What MindSpore gives for the same file."""
    import mindspore as ms

    cell = ms.nn.GraphCell(ms.load(str(path)))
    return cell(*[ms.Tensor(array) for array in inputs])


def compare(ours, theirs, tolerance=1e-4):
    """Equal in number, types and shapes; floats to within `tolerance` of the largest."""
    assert [one.dtype for one in ours] == [one.dtype for one in theirs]
    assert [one.shape for one in ours] == [one.shape for one in theirs]
    for our, their in zip(ours, theirs, strict=True):
        if np.issubdtype(their.dtype, np.floating):
            largest = np.abs(their[np.isfinite(their)]).max(initial=1.0)
            np.testing.assert_allclose(our, their, rtol=tolerance, atol=tolerance * largest)
        else:
            np.testing.assert_array_equal(our, their)


@pytest.fixture
def check(tmp_path):
    """A function: export `cell`, run it on `inputs` by OpenVINO and by MindSpore, compare."""

    def run(cell, inputs, shapes=None, tolerance=1e-4):
        cell.set_train(False)
        path = tmp_path / "model.mindir"
        path.unlink(missing_ok=True)
        export(cell, path, inputs, shapes)
        backend = opened(path)
        theirs = arrays_of(run_by_mindspore(path, inputs))
        ours = [np.array(one) for one in backend.run(inputs)]
        backend.close()
        compare(ours, theirs, tolerance)

    return run
