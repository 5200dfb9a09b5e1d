"""Flash attention, for which MindSpore has no kernel for CPUs, against PyTorch."""

import numpy as np
import pytest

pytest.importorskip("mindspore", reason="MindSpore has the enumeration of layouts")
pytest.importorskip("torch", reason="PyTorch computes what is compared")

from mindspore_serving.mindir.operators import OPERATORS
from mindspore_serving.mindir.operators.enumerations import LAYOUT
from mindspore_serving.mindir.tensors import UnsupportedTensor, apply
from tests.mindir.cases_mathematics import attention
from tests.mindir.test_operators import compare_with_reference

pytestmark = [pytest.mark.mindspore, pytest.mark.torch]


class Arrays:
    """Random arrays, as `drawing.Draw` gives them."""

    def __init__(self):
        self._random = np.random.default_rng(5)

    def floats(self, shape):
        return self._random.standard_normal(shape).astype(np.float32)

    def bools(self, shape):
        return self._random.random(shape) < 0.4


@pytest.mark.parametrize("sparse_mode", range(4))
@pytest.mark.parametrize("layout", ["bsh", "bnsd", "sbh", "bsnd"])
def test_attention_of_every_layout_and_mask_equals_pytorch(layout, sparse_mode):
    number = next(number for number, name in LAYOUT.names.items() if name == layout)
    compare_with_reference("FlashAttentionScore", [attention(Arrays(), number, sparse_mode)])


@pytest.mark.parametrize("number", range(4, 10))
def test_other_layouts_of_attention_are_refused_by_name(number):
    name = LAYOUT.names[number]
    with pytest.raises(
        UnsupportedTensor, match=rf"input_layout {number} \({name}\), accepted: bnsd"
    ):
        apply(OPERATORS["FlashAttentionScore"], [None] * 3, {"input_layout": number})
