"""Pooling of one example, whose input has no axis for a batch, against PyTorch."""

import numpy as np
import openvino as ov
import pytest
from openvino import opset16 as op

from mindspore_serving.mindir.operators import OPERATORS
from mindspore_serving.mindir.tensors import apply, tensor
from mindspore_serving.mindir.values import Lost

torch = pytest.importorskip("torch", reason="PyTorch computes what is compared")
F = torch.nn.functional
pytestmark = pytest.mark.torch


def places(pool):
    return lambda x, *more: pool(x, *more, return_indices=True)


REFERENCES = {
    "AdaptiveAvgPool1D": (1, (3,), F.adaptive_avg_pool1d),
    "AdaptiveAvgPool2D": (2, ((3, 2),), F.adaptive_avg_pool2d),
    "AdaptiveAvgPool3D": (3, ((3, 2, 4),), F.adaptive_avg_pool3d),
    "AdaptiveMaxPool1D": (1, (3,), places(F.adaptive_max_pool1d)),
    "AdaptiveMaxPool2D": (2, ((3, 2),), places(F.adaptive_max_pool2d)),
    "AvgPool1D": (1, ((2,), (1,), (1,)), F.avg_pool1d),
    "AvgPool2D": (2, ((2, 3), (1, 2), (1, 0)), F.avg_pool2d),
    "AvgPool3DExt": (3, ((2, 3, 2), (1, 2, 1), (1, 0, 1)), F.avg_pool3d),
    "FuncMaxPool2D": (2, ((3, 3), (1, 2), (1, 0)), F.max_pool2d),
    "MaxPoolWithIndices": (2, ((3, 3), (1, 2), (1, 0)), places(F.max_pool2d)),
    "MaxPoolWithMask": (2, ((3, 3), (1, 2), (1, 0)), F.max_pool2d),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_an_example_without_a_batch_is_pooled_over_its_spatial_axes(name):
    count, more, reference = REFERENCES[name]
    x = np.random.default_rng(0).permutation(2 * 6**count).reshape(2, *[6] * count)
    x = x.astype(np.float32)
    parameter = op.parameter(x.shape, ov.Type.f32)
    result = apply(OPERATORS[name], [parameter.output(0), *more], {})
    results = result if isinstance(result, tuple) else (result,)
    outputs = [op.result(tensor(one)) for one in results if not isinstance(one, Lost)]
    model = ov.Model(outputs, [parameter], name)
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    ours = compiled([x]).values()
    theirs = reference(torch.from_numpy(x), *more)
    for our, their in zip(ours, theirs if isinstance(theirs, tuple) else (theirs,), strict=True):
        np.testing.assert_allclose(our, their.numpy(), rtol=1e-5)
