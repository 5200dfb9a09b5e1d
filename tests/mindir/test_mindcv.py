"""Published networks for images give on OpenVINO what MindSpore gives: the families of mindcv."""

import numpy as np
import pytest

pytest.importorskip("mindspore", reason="MindSpore exports and runs these networks")
pytest.importorskip("mindcv", reason="the networks: pip install --no-deps mindcv")
from mindcv.models import registry

from tests.mindir.conftest import arrays_of, export, opened, run_by_mindspore
from tests.mindir.mindcv_families import (
    FAMILIES,
    FIXED_ALONE,
    IN_PLACE,
    NOT_EXPORTED,
    Family,
    build,
)

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of mindcv and of what it imports
]
OTHERS = [
    (family, name)
    for family in registry.list_modules()
    for name in registry.list_models(module=family)
    if family not in NOT_EXPORTED
]
# With an open batch, but for what needs a fixed one, and for changes in place with both.
BATCHES = [
    pytest.param(name, batch, marks=[] if is_tried else [pytest.mark.long])
    for name in FAMILIES
    for batch, is_tried in (
        ("open", name not in FIXED_ALONE),
        ("fixed", name in FIXED_ALONE | IN_PLACE),
    )
    if batch == "fixed" or is_tried
]


def test_every_family_of_mindcv_that_mindspore_exports_has_a_network_here():
    assert sorted({*FAMILIES, *NOT_EXPORTED}) == registry.list_modules()


@pytest.mark.parametrize(("name", "batch"), BATCHES)
def test_a_network_of_a_family_answers_as_with_mindspore(name, batch, tmp_path):
    check(build(name, FAMILIES[name]), FAMILIES[name].size, batch, tmp_path / "net.mindir")


@pytest.mark.long
@pytest.mark.parametrize(("family", "name"), OTHERS)
def test_a_published_network_answers_as_with_mindspore(family, name, tmp_path):
    """As it is published, but for blocks that repeat the one before."""
    size = registry.get_pretrained_cfg(name).get("input_size", (3, 224, 224))[-1]
    batch = "fixed" if family in FIXED_ALONE else "open"
    check(build(family, Family(name, size)), size, batch, tmp_path / "net.mindir")


def check(network, size, batch, path):
    """Equal to 1e-4 of the largest; answers depend on the picture, and are no constants."""
    x = np.random.default_rng(1).standard_normal((2, 3, size, size)).astype(np.float32)
    export(network, path, [x], [(None, *x.shape[1:])] if batch == "open" else None)
    theirs = arrays_of(run_by_mindspore(path, [x]))
    largest = np.abs(theirs[0]).max()
    assert np.abs(theirs[0][0] - theirs[0][1]).max() > 0.02 * largest
    assert theirs[0].std() > 0.05 * largest
    backend = opened(path)
    ours = [np.array(one) for one in backend.run([x])]
    backend.close()
    for our, their in zip(ours, theirs, strict=True):
        assert our.shape == their.shape
        assert np.abs(our - their).max() <= 1e-4 * np.abs(their).max()
