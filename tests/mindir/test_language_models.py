"""The files that our own export writes of a language model."""

import numpy as np
import pytest

pytest.importorskip("mindspore", reason="MindSpore exports the model")
pytest.importorskip("transformers", reason="it makes the checkpoint")
from mindspore_serving.llm.export_mindir import export_mindir
from tests.llm import checkpoints
from tests.mindir.conftest import arrays_of, compare, opened, run_by_mindspore

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
RANDOM = np.random.default_rng(0)
BATCH, PAST = 2, 3


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    directory = tmp_path_factory.mktemp("language")
    export_mindir(checkpoints.build("llama", directory), directory / "mindir")
    return directory / "mindir"


@pytest.mark.parametrize("name", ["prefill", "decode", "argmax", "topk"])
def test_a_file_of_the_export_answers_as_with_mindspore(exported, name):
    path = exported / f"{name}.mindir"
    backend = opened(path)
    inputs = MAKERS[name](backend.signature[0].inputs)
    ours = [np.array(one) for one in backend.run(inputs)]
    compare(ours, arrays_of(run_by_mindspore(path, inputs)))


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def step(specs, count):
    """`count` new tokens for each of two sequences behind some of the past."""
    caches = specs[4:]
    heads, _, _, width = caches[0].shape
    tokens = RANDOM.integers(0, 50, (BATCH, count)).astype(np.int32)
    places = np.tile(np.arange(PAST, PAST + count, dtype=np.int32), (BATCH, 1))
    rows = np.arange(BATCH, dtype=np.int32) * count
    mask = np.zeros((BATCH, count, PAST + count), np.float32)
    return [tokens, places, rows, mask, *(floats(heads, BATCH, PAST, width) for _ in caches)]


MAKERS = {
    "prefill": lambda specs: step(specs, 5),
    "decode": lambda specs: step(specs, 1),
    "argmax": lambda specs: [floats(3, specs[0].shape[1])],
    "topk": lambda specs: [floats(3, specs[0].shape[1]), np.full((3, 1), 0.7, np.float32)],
}
