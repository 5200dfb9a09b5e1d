"""Convolution layers, forward and transposed, over their settings."""

import numpy as np
import pytest

pytest.importorskip("mindspore", reason="MindSpore exports and runs these layers")
from mindspore import nn

from tests.mindir.conftest import arrays_of, export, opened, run_by_mindspore
from tests.mindir.convolutions import IN, LAYERS, Swept, covering, made

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def different(settings, ours, theirs):
    """Those whose results differ by more than 1e-4 of the largest number."""
    return [
        setting
        for setting, our, their in zip(settings, ours, theirs, strict=True)
        if our.shape != their.shape or np.abs(our - their).max() > 1e-4 * np.abs(their).max()
    ]


@pytest.mark.parametrize("name", LAYERS)
def test_a_convolution_with_any_three_settings_equals_mindspore(name, tmp_path):
    kind, sizes, settings = LAYERS[name]
    check_swept(kind, sizes, covering(settings), tmp_path / "swept.mindir")


@pytest.mark.long
@pytest.mark.parametrize("name", LAYERS)
def test_a_convolution_with_all_settings_equals_mindspore(name, tmp_path):
    check_swept(*LAYERS[name], tmp_path / "swept.mindir")


def check_swept(kind, sizes, settings, path):
    cell = Swept([made(kind, setting) for setting in settings])
    cell.set_train(False)
    x = np.random.default_rng(0).standard_normal((2, IN, *sizes)).astype(np.float32)
    export(cell, path, [x])
    theirs = arrays_of(run_by_mindspore(path, [x]))
    ours = [np.array(one) for one in opened(path).run([x])]
    assert different(settings, ours, theirs) == []


@pytest.mark.parametrize("mode", ["same", "valid", "pad"])
@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_a_transposed_convolution_of_open_sizes_equals_mindspore(kernel, mode, check):
    padding = 1 if mode == "pad" else 0
    cell = made(
        nn.Conv2dTranspose,
        {"kernel_size": kernel, "stride": 3, "pad_mode": mode, "padding": padding},
    )
    x = np.random.default_rng(0).standard_normal((2, IN, 5, 4)).astype(np.float32)
    for shape in ((None, IN, 5, 4), (None, IN, None, None)):
        check(cell, [x], [shape])
