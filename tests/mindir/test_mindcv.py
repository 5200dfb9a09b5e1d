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
    GAINS,
    IN_PLACE,
    NOT_EXPORTED,
    SHOWN_BY,
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
TRIED = [
    pytest.param(name, marks=[pytest.mark.long] if name in SHOWN_BY else []) for name in FAMILIES
]
BOTH = ("fixed", "open")


def batches_of(family):
    """Those of `BOTH` that MindSpore exports."""
    return BOTH[:1] if family in FIXED_ALONE else BOTH


def test_every_family_of_mindcv_that_mindspore_exports_has_a_network_here():
    assert sorted({*FAMILIES, *NOT_EXPORTED}) == registry.list_modules()


@pytest.mark.parametrize("name", TRIED)
def test_a_network_of_a_family_answers_as_with_mindspore(name, tmp_path):
    """With an open batch, where it can be exported; networks with changes in place with both."""
    batches = batches_of(name) if name in IN_PLACE else batches_of(name)[-1:]
    check(build(name, FAMILIES[name]), FAMILIES[name].size, batches, tmp_path / "net.mindir")


@pytest.mark.long
@pytest.mark.parametrize(("family", "name"), OTHERS)
def test_a_published_network_answers_as_with_mindspore(family, name, tmp_path):
    """As it is published, but for blocks that repeat the one before."""
    size = registry.get_pretrained_cfg(name).get("input_size", (3, 224, 224))[-1]
    network = build(family, Family(name, size, gain=GAINS.get(family, 2.0)))
    check(network, size, batches_of(family), tmp_path / "net.mindir")


def images(size):
    """Two that differ in colours and contrast too: averages over noise are much the same."""
    random = np.random.default_rng(1)
    noise = random.standard_normal((2, 3, size, size))
    contrast, colours = np.array([0.5, 2.0]).reshape(2, 1, 1, 1), random.normal(0, 2, (2, 3, 1, 1))
    return (noise * contrast + colours).astype(np.float32)


def check(network, size, batches, path):
    """Files with each of `batches` answer as MindSpore does with the first; answers depend on the
    image, and are no constants."""
    x, theirs = images(size), []
    for batch in batches:
        export(network, path, [x], [(None, *x.shape[1:])] if batch == "open" else None)
        theirs = theirs or arrays_of(run_by_mindspore(path, [x]))
        backend = opened(path)
        ours = [np.array(one) for one in backend.run([x])]
        backend.close()
        for our, their in zip(ours, theirs, strict=True):
            assert our.shape == their.shape
            assert np.abs(our - their).max() <= 1e-4 * np.abs(their).max()
    largest = np.abs(theirs[0]).max()
    assert np.abs(theirs[0][0] - theirs[0][1]).max() > 0.02 * largest
    assert theirs[0].std() > 0.05 * largest
