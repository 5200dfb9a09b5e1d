"""Prompts of models whose layers have a state: it follows the blocks, on a machine and over TLS."""

from contextlib import closing

import pytest

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.engine.stored_states import StoredStates
from tests.llm import checkpoints
from tests.llm.serving.test_handoffs import GREEDY, Pair, num_memories, renewed, texts
from tests.llm.serving.test_linked_handoffs import Linked

pytestmark = pytest.mark.torch

# Family -> how its workers are connected: the linear attention of Qwen3-Next, Mamba-2 beside
# attention in the same layer, and the convolutions of LFM2.
PLACES = {"qwen3-next": Linked, "falcon-h1": Pair, "lfm2": Linked}
COUNT, FULL = 300, 288  # tokens of a prompt, and of its full blocks
OPTIONS = {"max_num_batched_tokens": 64, "block_size": 32}


def prompt(seed):
    """A prompt that begins unlike all others."""
    return [9 + seed, *(9 + index * 7 % 150 for index in range(COUNT - 1))]


@pytest.fixture(scope="module", params=PLACES)
def opened(tmp_path_factory, request):
    directory = checkpoints.build(request.param, tmp_path_factory.mktemp("states"))
    with closing(PLACES[request.param](directory, **OPTIONS)) as pair:
        yield pair


@pytest.fixture
def pair(opened, monkeypatch):
    return renewed(opened, monkeypatch)


def imports(pair):
    """Return what counts the handoffs; `stats` may be older than an answer."""
    return pair.decode.engine._loop._engine.imports


def assert_answered(pair, tokens, num_cached=0):
    """Assert that the answer is that of a worker which does both."""
    request = Generate(prompt=tokens, params=GREEDY)
    events = pair.answer(request)
    assert texts(events) == texts(pair.answer(request, pair.alone))
    assert events[-1].num_cached_tokens == num_cached


def test_answers_are_those_of_a_single_worker_and_cached_blocks_stay(pair):
    assert_answered(pair, prompt(1))
    assert imports(pair).num_prompts == 1
    (call,) = pair.caller.calls.values()
    assert (call.num_cached, len(call.prompt)) == (0, FULL)
    assert_answered(pair, [*prompt(1), *prompt(2)[:150]], FULL)
    (*_, call) = pair.caller.calls.values()
    assert (call.num_cached, len(call.prompt)) == (FULL // 32, 448)
    assert_answered(pair, prompt(1), FULL)
    assert len(pair.caller.calls) == 2
    assert imports(pair).num_failed == 0
    pair.until(lambda: not num_memories() and not pair.prefill.engine.num_open)


def test_prompts_are_computed_where_decoded_if_the_state_is_lost(pair, monkeypatch):
    monkeypatch.setattr(StoredStates, "snapshot", lambda *_: [])
    monkeypatch.setattr("mindspore_serving.llm.serving.handoffs.patience", lambda *_: 0.3)
    failed = imports(pair).num_failed
    assert_answered(pair, prompt(3))
    assert imports(pair).num_failed == failed + 1
    pair.until(lambda: not num_memories())


def test_prompts_are_computed_where_decoded_if_a_step_fails_elsewhere(pair, monkeypatch):
    runner, steps = pair.prefill.engine._runner, []
    run = runner.run

    def fail_once(step):
        steps.append(step)
        if len(steps) == 3:
            raise ServingError("the device is gone")
        return run(step)

    monkeypatch.setattr(runner, "run", fail_once)
    failed = imports(pair).num_failed
    assert_answered(pair, prompt(4))
    assert len(steps) == 3
    assert imports(pair).num_failed == failed + 1
    pair.until(lambda: not num_memories() and not pair.prefill.engine.num_open)
