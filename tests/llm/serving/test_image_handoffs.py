"""Prompts with images that another worker computes: their vectors go with its request."""

from contextlib import closing

import pytest

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.llm.serving import handoffs
from tests.llm import seeing
from tests.llm.serving.test_handoffs import GREEDY, Pair, num_memories, renewed, texts
from tests.llm.serving.test_linked_handoffs import Linked

pytestmark = pytest.mark.torch

# Family -> how its workers are connected: positions in height and width beside states; neither;
# vectors for several layers; images whose tokens see one another.
PLACES = {"qwen3.5": Linked, "llava": Pair, "qwen3-vl": Linked, seeing.SEES_WHOLE: Pair}
ALWAYS = ("qwen3.5", "llava")
KINDS = [pytest.param(k, marks=[] if k in ALWAYS else [pytest.mark.long]) for k in PLACES]
OPTIONS = {"max_num_batched_tokens": 64, "max_num_seqs": 8}
SEEDS, OTHERS = (1, 2, 3, 4), (5, 6, 7, 8)  # of images
BLOCK = 32
TEXT = "this is an image of several ones, "


@pytest.fixture(scope="module", params=KINDS)
def opened(tmp_path_factory, request):
    directory = seeing.build(tmp_path_factory.mktemp("images"), request.param)
    with closing(PLACES[request.param](directory, **OPTIONS)) as pair:
        for worker in (pair.prefill, pair.decode, pair.alone):
            worker.engine._preparation._open_pool = None  # no process for each
        yield pair


@pytest.fixture
def pair(opened, monkeypatch):
    return renewed(opened, monkeypatch)


def chat(seeds):
    """A request with an image for each of `seeds`, amid texts."""
    parts = [part for seed in seeds for part in (TEXT, seeing.image(seed, 90, 70))]
    return Generate(messages=seeing.chat(*parts, " and say it"), params=GREEDY)


def imports(pair):
    return pair.decode.engine._loop._engine.imports


def assert_answered(pair, request):
    """Assert that the answer is that of a single worker; return its events."""
    events = pair.answer(request)
    assert texts(events) == texts(pair.answer(request, pair.alone))
    return events


def test_answers_with_images_are_those_of_a_single_worker(pair):
    request = chat(SEEDS)
    events = assert_answered(pair, request)
    ((call,), end) = pair.caller.calls.values(), events[-1]
    assert (imports(pair).num_prompts, imports(pair).num_failed) == (1, 0)
    assert len(call.images.counts) >= 3
    assert 0 < end.num_prompt_tokens - len(call.prompt) <= 2 * BLOCK
    assert end.num_cached_tokens == 0
    num_full = (end.num_prompt_tokens - 1) // BLOCK * BLOCK
    assert assert_answered(pair, request)[-1].num_cached_tokens == num_full
    assert texts(assert_answered(pair, chat(OTHERS))) != texts(events)
    assert len(pair.caller.calls) == 2
    pair.until(lambda: not num_memories() and not pair.prefill.engine.num_open)


def test_prompts_with_too_large_images_are_computed_where_decoded(pair, monkeypatch):
    monkeypatch.setattr(handoffs, "MAX_IMAGE_BYTES", 15_000)
    count = len(pair.caller.calls)
    assert_answered(pair, chat((9, *SEEDS)))
    assert len(pair.caller.calls) == count
