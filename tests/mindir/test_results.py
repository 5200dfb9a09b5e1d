"""An operator gives as many results as the file says."""

import numpy as np
import openvino as ov
import pytest
from openvino import opset16 as op

pytest.importorskip("mindspore", reason="MindSpore exports what is converted")
from mindspore import mint, nn

from mindspore_serving.errors import StartError
from mindspore_serving.mindir import convert
from mindspore_serving.mindir.operators import OPERATORS
from mindspore_serving.mindir.tensors import UnsupportedTensor, apply
from tests.mindir.conftest import export, opened

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
X = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)


class LogSigmoid(nn.Cell):
    def construct(self, x):
        return mint.nn.functional.logsigmoid(x)


def test_logsigmoid_of_mint_gives_all_rows(tmp_path):
    """Its operator has two results; MindSpore has no kernel for it on a CPU."""
    export(LogSigmoid(), tmp_path / "one.mindir", [X])
    (result,) = opened(tmp_path / "one.mindir").run([X])
    np.testing.assert_allclose(result, -np.log1p(np.exp(-X)), rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in OPERATORS if "etitem" in name.lower()])
def test_an_item_of_a_tensor_is_refused(name):
    tensor = op.parameter((2, 3), ov.Type.f32).output(0)
    with pytest.raises(UnsupportedTensor, match="item 0 of what is no tuple"):
        apply(OPERATORS[name], [tensor, 0], {})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda x: x, "would give a tensor, and gives a tuple of 2"),
        (lambda x: (x, x, x), "would give a tuple of 3, and gives a tuple of 2"),
    ],
)
def test_another_number_of_results_than_in_the_file_is_refused(wrong, words, tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "OPERATORS", {**OPERATORS, "LogSigmoid": wrong})
    export(LogSigmoid(), tmp_path / "one.mindir", [X])
    with pytest.raises(StartError, match=f"operator LogSigmoid at .*{words} in the file"):
        opened(tmp_path / "one.mindir")
