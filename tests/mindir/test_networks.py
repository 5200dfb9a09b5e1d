"""Networks that MindSpore exports give on OpenVINO what MindSpore itself gives."""

import numpy as np
import pytest

pytest.importorskip("mindspore", reason="MindSpore exports and runs these networks")
from tests.mindir.conftest import export, opened
from tests.mindir.networks import NETWORKS, Counter, Growing

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.filterwarnings("ignore:getName\\(\\) is deprecated:DeprecationWarning"),
]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_answers_as_with_mindspore(check, name):
    make, inputs, shapes = NETWORKS[name]
    check(make(), inputs, shapes)


def test_a_loop_may_make_a_tensor_longer(tmp_path):
    """MindSpore 2.10 itself gives the first iteration's result here."""
    x = np.array([[1, 2], [3, 4]], np.float32)
    export(Growing(), tmp_path / "growing.mindir", [x], [(None, 2)])
    (result,) = opened(tmp_path / "growing.mindir").run([x])
    np.testing.assert_array_equal(result, [[1, 2], [3, 4], [2, 3], [2, 3], [2, 3]])


def test_weights_that_a_network_writes_keep_their_value(tmp_path):
    export(Counter(), tmp_path / "counter.mindir", [np.zeros(3, np.float32)])
    backend = opened(tmp_path / "counter.mindir")
    for count in (1, 2, 3):
        (result,) = backend.run([np.array([1, 2, 3], np.float32)])
        np.testing.assert_array_equal(result, [count, 2 * count, 3 * count])
