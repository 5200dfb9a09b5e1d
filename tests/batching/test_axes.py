"""Which shapes and names of dimensions say that first dimensions are no batch."""

import numpy as np
import pytest

from mindspore_serving.batching.axes import ObservedRun, why_no_batch
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.value import Signature, TensorSpec

ANY = -1
SPEC = DeclaredModel("m", "onnx", with_batch_dim=None)


def tensor(name, *dims):
    """A tensor whose dimensions are sizes, -1 or names; None is an unknown rank."""
    if dims == (None,):
        return TensorSpec(name, np.dtype("f4"), None)
    shape = tuple(dim if isinstance(dim, int) else ANY for dim in dims)
    symbols = tuple(dim if isinstance(dim, str) else "" for dim in dims)
    return TensorSpec(name, np.dtype("f4"), shape, symbols=symbols)


def reason(inputs, outputs=(), observed=None, spec=SPEC):
    graph = Signature(
        tuple(tensor(f"x{i}", *dims) for i, dims in enumerate(inputs)),
        tuple(tensor(f"y{i}", *dims) for i, dims in enumerate(outputs)),
    )
    return why_no_batch(spec, graph, observed)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([(ANY, 3)], [(ANY, 2)]),
        ([(4, 3), (4,)], [(4, 2)]),
        ([(4, 3)], [(ANY, 2)]),
        ([(ANY, 3), (1, 5)], [(1, 2)]),  # exporters leave the 1 that they traced
        ([(None,), (ANY, 3)], [(None,)]),
        ([("unk__214", 2048)], [("unk__215", 214)]),  # Magika
        ([("batch", "sequence"), ("batch", "sequence")], [("batch", "sequence", 8)]),
        ([("n", 3), ("n", "n")], [("n", 2)]),
        ([(0, 3), (ANY, 3)], []),  # refused elsewhere
    ],
)
def test_tensors_that_agree_have_a_batch(inputs, outputs):
    assert not reason(inputs, outputs)


@pytest.mark.parametrize(
    ("inputs", "outputs", "text"),
    [
        (
            [(ANY, ANY), (2, ANY, 128), (None,)],  # Silero VAD
            [(ANY, 1), (ANY, ANY, ANY)],
            "the first dimension of input 'x0' is any size, that of input 'x1' 2",
        ),
        (
            [("batch", "sequence"), (2, "batch", 128)],
            [("batch", 1)],
            "dimension 'batch' is the first of input 'x0', but number 2 of input 'x1'",
        ),
        ([(1, 576), (2, 1, 128)], [], "of input 'x0' is 1, that of input 'x1' 2"),
        ([(ANY, 3), (1, 3), (4, 3)], [], "of input 'x1' is 1, that of input 'x2' 4"),
        ([(ANY, 3), ()], [], "input 'x1' is a scalar"),
        ([(ANY, 3)], [()], "output 'y0' is a scalar"),
        ([("M", 3)], [(3, "M")], "'M' is the first of input 'x0', but number 2 of output 'y0'"),
        ([(ANY, 3)], [(5, 3)], "of input 'x0' is any size, that of output 'y0' 5"),
        ([(4, 3)], [(2, 3)], "of input 'x0' is 4, that of output 'y0' 2"),
        ([("time", "batch_size", 8)], [], "dimension 'batch_size' is number 2 of input 'x0'"),
        ([("nodes", 8), (2, "edges")], [], "'x0' is any size, that of input 'x1' 2"),
    ],
)
def test_tensors_that_disagree_have_no_batch(inputs, outputs, text):
    assert text in reason(inputs, outputs)


def test_inputs_without_a_batch_dimension_are_not_compared():
    assert not reason([(ANY, 3), (2, 3)], spec=DeclaredModel("m", "onnx", "", None, True, (1,)))


def test_a_run_overrides_the_sizes_that_the_file_has_for_outputs():
    assert not reason([(ANY, 3)], [(5, 3)], ObservedRun(2, ((2, 3),)))
    assert "output 'y0' has shape [3, 2] in a run of 2" in reason(
        [(ANY, 3)], [(ANY, ANY)], ObservedRun(2, ((3, 2),))
    )
    assert "output '0' has shape []" in reason([(ANY, 3)], [], ObservedRun(2, ((),)))
