"""Workaround for OpenVINO's wrong CPU kernels, in files of any format."""

import numpy as np
import pytest

from mindspore_serving.backends import ModelSource, open_backend
from mindspore_serving.core.declaration import DeclaredModel

openvino = pytest.importorskip("openvino", reason="it writes and runs these models")
RANDOM = np.random.default_rng(0)


def attention_model(batch, heads, tokens, width):
    """Softmax attention of a (3, batch, heads, tokens, width) input, heads side by side behind."""
    from openvino import opset13 as ops

    def ints(*values):
        return ops.constant(np.array(values))

    x = ops.parameter((3, batch, heads, tokens, width), np.float32, "x")
    query, key, value = (ops.gather(x, ops.constant(place), ops.constant(0)) for place in range(3))
    scores = ops.multiply(
        ops.matmul(query, key, False, True), ops.constant(np.float32(width**-0.5))
    )
    y = ops.transpose(ops.matmul(ops.softmax(scores, 3), value, False, False), ints(0, 2, 1, 3))
    y.output(0).set_names({"turned"})
    y = ops.reshape(y, ints(batch * tokens, heads * width), False)
    y.output(0).set_names({"y"})
    return openvino.Model([y.output(0)], [x], "attention")


def attention(x):
    query, key, value = x.astype(np.float64)
    weights = np.exp(query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5)
    y = (weights / weights.sum(-1, keepdims=True)) @ value
    return y.transpose(0, 2, 1, 3).reshape(x.shape[1] * x.shape[3], -1)


@pytest.mark.parametrize("shape", [(1, 4, 4, 8), (2, 12, 12, 16), (2, 4, 5, 8)], ids=str)
def test_attention_with_as_many_heads_as_tokens_is_that_of_numpy(tmp_path, shape):
    openvino.save_model(attention_model(*shape), tmp_path / "net.xml", compress_to_fp16=False)
    spec = DeclaredModel("net", "openvino", with_batch_dim=False)
    backend = open_backend(ModelSource(spec, (str(tmp_path / "net.xml"),)))
    x = RANDOM.standard_normal((3, *shape)).astype(np.float32)
    (y,) = backend.run([x])
    backend.close()
    np.testing.assert_allclose(y, attention(x), atol=1e-5)
