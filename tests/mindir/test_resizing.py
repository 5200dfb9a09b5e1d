"""Resizing of images in all modes, by sizes and by scales."""

from itertools import product

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore", reason="MindSpore exports and runs these networks")
torch = pytest.importorskip("torch", reason="PyTorch computes what MindSpore does not on a CPU")
from mindspore import mint, nn, ops  # noqa: E402

from tests.mindir.conftest import arrays_of, compare, export, opened, run_by_mindspore  # noqa: E402

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
RANDOM = np.random.default_rng(5)
SHAPES = {1: (2, 3, 5), 2: (2, 3, 5, 4), 3: (1, 2, 5, 4, 3)}
TARGETS = (
    {"size": (9, 7, 6)},
    {"size": (3, 2, 2)},
    {"size": (10, 8, 6)},
    {"scale_factor": (2.0, 3.0, 2.0)},
    {"scale_factor": (1.7, 2.3, 1.4)},
    {"scale_factor": (0.6, 0.7, 0.9)},
    {"scale_factor": (1.7, 2.3, 1.4), "recompute_scale_factor": True},
)
# Mode -> numbers of spatial axes, and whether corners may be aligned.
MODES = {
    "nearest": ((1, 2, 3), False),
    "nearest-exact": ((1, 2), False),
    "linear": ((1,), True),
    "bilinear": ((2,), True),
    "bicubic": ((2,), True),
    "trilinear": ((3,), True),
    "area": ((2, 3), False),
}
APIS = {"ops": ops.interpolate, "mint": mint.nn.functional.interpolate}


class Resized(nn.Cell):
    """One image resized in every way of `settings`."""

    def __init__(self, function, settings):
        super().__init__()
        self.function, self.settings = function, settings

    def construct(self, x):
        results = ()
        for setting in self.settings:
            results += (self.function(x, **setting),)
        return results


def settings_of(mode, count):
    aligned = MODES[mode][1]
    for target, align in product(TARGETS, (False, True) if aligned else (None,)):
        setting = {
            key: value[:count] if isinstance(value, tuple) else value
            for key, value in target.items()
        }
        yield {"mode": mode, **setting, **({} if align is None else {"align_corners": align})}


def is_exported(api, mode, count, setting):
    """Whether MindSpore makes a graph of it: with `ops` a scale must be computed anew, but for
    nearest and linear of three axes and for areas; `mint` has no other modes."""
    if api == "mint":
        return mode not in ("nearest-exact", "area")
    is_scaled = "scale_factor" in setting and "recompute_scale_factor" not in setting
    return not is_scaled or mode == "area" or (count == 3 and mode != "nearest-exact")


CASES = [
    pytest.param(api, mode, count, id=f"{api}-{mode}-{count}d")
    for api in APIS
    for mode, (counts, _) in MODES.items()
    for count in counts
    if api == "ops" or mode not in ("nearest-exact", "area")
]


@pytest.mark.parametrize(("api", "mode", "count"), CASES)
def test_a_resized_image_is_that_of_mindspore(api, mode, count, tmp_path):
    """Where MindSpore has no kernel for CPUs (`mint` with weights), that of torch."""
    settings = [one for one in settings_of(mode, count) if is_exported(api, mode, count, one)]
    x = RANDOM.standard_normal(SHAPES[count]).astype(np.float32)
    path = tmp_path / "resized.mindir"
    export(Resized(APIS[api], settings), path, [x])
    try:
        theirs = arrays_of(run_by_mindspore(path, [x]))
    except RuntimeError:
        theirs = [
            torch.nn.functional.interpolate(torch.from_numpy(x), **setting).numpy()
            for setting in settings
        ]
    compare([np.array(one) for one in opened(path).run([x])], theirs)


PRIMITIVES = {
    "ResizeBilinearV2": ops.ResizeBilinearV2,
    "ResizeNearestNeighborV2": ops.auto_generate.ResizeNearestNeighborV2,
    "ResizeBicubic": ops.ResizeBicubic,
}


class Called(nn.Cell):
    def __init__(self, made, size):
        super().__init__()
        self.made, self.size = made, size

    def construct(self, x):
        return self.made(x, self.size)


@pytest.mark.parametrize("name", PRIMITIVES)
@pytest.mark.parametrize(
    "how", [{}, {"align_corners": True}, {"half_pixel_centers": True}], ids=str
)
def test_a_resizing_operator_samples_where_mindspore_does(name, how, check):
    x = RANDOM.standard_normal((1, 2, 5, 4)).astype(np.float32)
    for size in ((7, 9), (3, 2), (10, 8)):
        check(Called(PRIMITIVES[name](**how), size), [x])


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_a_scale_of_an_image_of_open_size_is_honoured(mode, tmp_path):
    setting = {"mode": mode, "scale_factor": (1.7, 2.3)}
    x = RANDOM.standard_normal((2, 3, 5, 4)).astype(np.float32)
    path = tmp_path / "resized.mindir"
    export(Resized(APIS["mint"], [setting]), path, [x], [(None, 3, None, None)])
    (ours,) = opened(path).run([x])
    expected = torch.nn.functional.interpolate(torch.from_numpy(x), **setting).numpy()
    np.testing.assert_allclose(np.array(ours), expected, rtol=1e-4, atol=1e-4)
