"""A GRU in MindIR, whose hidden state stays in the server between requests."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.harness import config, serving

openvino = pytest.importorskip("openvino")


@pytest.mark.mindspore
def test_a_gru_in_mindir_continues_its_sequence(tmp_path: Path) -> None:
    mindspore = pytest.importorskip("mindspore")
    from mindspore import nn

    class Gru(nn.Cell):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(4, 6, batch_first=True)

        def construct(self, x: Any, h: Any) -> Any:
            y, new = self.gru(x, h)
            return y[:, -1], new

    net = Gru().set_train(False)
    shapes = ((None, 1, 4), (1, None, 6))
    inputs = [mindspore.Tensor(shape=shape, dtype=mindspore.float32) for shape in shapes]
    mindspore.export(net, *inputs, file_name=str(tmp_path / "gru.mindir"), file_format="MINDIR")
    rows = np.random.default_rng(0).standard_normal((6, 1, 4)).astype(np.float32)
    zeros = mindspore.Tensor(np.zeros((1, 1, 6), np.float32))
    whole, _ = net.gru(mindspore.Tensor(rows[None, :, 0]), zeros)
    axes, states = {"h": 1, "output1": 1}, {"h": "output1"}
    options = {"backend": "openvino", "batch_axis": axes, "states": states}
    with (
        serving(tmp_path, config(tmp_path, "gru.mindir", **options)) as calls,
        calls.client("gru", "predict").sequence() as sequence,
    ):
        served = [sequence.infer({"x": row})[0]["output0"] for row in rows]
    np.testing.assert_allclose(served, whole.asnumpy()[0], rtol=1e-4, atol=1e-5)
