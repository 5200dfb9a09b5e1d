"""Steps that are begun before others have ended: failures, the background, requests in flight."""

import pytest

from mindspore_serving.core.llm_messages import BACKGROUND
from mindspore_serving.core.sampling_params import FinishReason, SamplingParams
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.engine import Engine
from tests.llm.toy import OverlappingToy
from tests.llm.toy_answers import continuation

BAD = 99  # token of a prompt
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


class FailingToy(OverlappingToy):
    """A toy that refuses a step when its prompt has the token BAD, and fails to sample another."""

    def begin(self, step):
        if any(row.tokens[-1] == BAD for row in step.rows):
            raise ServingError("refused")
        super().begin(step)


def make(runner, num_groups=2):
    config = EngineConfig(
        max_num_seqs=8, block_size=4, num_speculative_tokens=0, pipeline_parallel=2,
        pipeline_groups=num_groups,
    )  # fmt: skip
    return Engine(runner, None, config)


def run(engine, until=lambda said: False):
    """Tokens and finish reasons by request."""
    said, ends = {}, {}
    while engine.has_work and not until(said):
        for request_id, generated in engine.step():
            said[request_id] = [*said.get(request_id, []), *generated.token_ids]
            ends[request_id] = generated.finish_reason
    return said, ends


def test_a_step_that_is_refused_ends_its_requests_alone():
    engine = make(FailingToy())
    for name in "abcd":
        engine.add(name, [ord(name) - 90], PARAMS)
    run(engine, lambda said: len(said.get("d", [])) == 2)
    engine.add("bad", [5, BAD], PARAMS)
    _, ends = run(engine)
    ended = [name for name, reason in ends.items() if reason is FinishReason.ERROR]
    assert "bad" in ended
    assert len(ended) <= 3  # a group of the four
    assert set(ends) - set(ended) == {name for name in "abcd" if name not in ended}
    assert engine.stats().num_free_blocks == engine.num_blocks


def test_a_step_that_cannot_be_sampled_is_not_taken_for_the_next(monkeypatch):
    engine = make(OverlappingToy())
    for name in "abcd":
        engine.add(name, [ord(name)], PARAMS)
    said, _ = run(engine, lambda said: len(said.get("d", [])) == 2)
    read, calls = engine._table.read, []

    def fail_once(scheduled):
        calls.append(scheduled)
        if len(calls) == 1:
            raise ValueError("a fault")
        return read(scheduled)

    monkeypatch.setattr(engine._table, "read", fail_once)
    later, ends = run(engine)
    ended = [name for name, reason in ends.items() if reason is FinishReason.ERROR]
    assert len(ended) == 2
    for name in set("abcd") - set(ended):
        assert said[name] + later[name] == continuation([ord(name)], 8, 128)


def test_the_background_does_not_fill_gaps_between_steps_in_flight():
    runner = OverlappingToy()
    engine = make(runner)
    computed = []
    engine.on_compute = lambda ids, size: computed.append((ids, size))
    for name in "abcd":
        engine.add(name, [ord(name)], PARAMS)
    engine.add("later", [7], PARAMS, priority=BACKGROUND)
    said, _ = run(engine)
    assert said["later"] == continuation([7], 8, 128)
    first = next(index for index, (ids, _) in enumerate(computed) if "later" in ids)
    assert first >= 2 * 7
    assert runner.max_begun == 2


@pytest.mark.parametrize("num_groups", [1, 2, 3])
def test_the_requests_of_all_steps_in_flight_are_reported(num_groups):
    engine = make(OverlappingToy(), num_groups)
    computed = []
    engine.on_compute = lambda ids, size: computed.append((set(ids), size))
    for name in "abcdef":
        engine.add(name, [ord(name)], PARAMS)
    run(engine)
    sizes = [size for _, size in computed]
    assert sizes[0] == 6
    assert set(sizes[1 : 2 * num_groups]) == {6 // num_groups}
    assert computed[num_groups][0] == set("abcdef")
