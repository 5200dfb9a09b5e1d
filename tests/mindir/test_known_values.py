"""What is known when a file is loaded is computed as what depends on the data."""

import numpy as np
import pytest

pytest.importorskip("mindspore", reason="MindSpore exports and runs this network")
from mindspore import Parameter, Tensor, nn, ops

pytestmark = [pytest.mark.mindspore, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class AbsoluteWeight(nn.Cell):
    def __init__(self, kind):
        super().__init__()
        self.weight = Parameter(Tensor(np.array([0, 1, -2, 5]).astype(kind)))

    def construct(self, x):
        return x * ops.abs(self.weight - 1), x * ops.abs(-self.weight)


@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_an_absolute_value_of_a_computed_weight_is_that_of_mindspore(kind, check):
    check(AbsoluteWeight(kind), [np.ones((2, 4), kind)])
