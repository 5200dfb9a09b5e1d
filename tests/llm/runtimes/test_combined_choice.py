"""Which runtime of two computes a step: decided from given times, and how those are measured."""

from contextlib import nullcontext
from itertools import count

from mindspore_serving.llm.runtimes.combined.choice import ALL, LARGEST, StepTimes, choose
from mindspore_serving.llm.runtimes.combined.measuring import SIZES, measure


def times(**of_native):
    """Times of a native step, of steps that take 10 seconds in OpenVINO."""
    return [StepTimes(int(name[1:]), native, 10) for name, native in of_native.items()]


def test_native_computes_steps_until_openvino_is_faster():
    assert choose(times(n1=5, n2=8, n4=11, n8=20)).last_native == 2
    assert choose(times(n1=11, n2=20)).last_native == 0
    assert choose(times(n1=5, n2=6)).last_native == 2


def test_a_disturbed_time_does_not_change_the_choice():
    assert choose(times(n1=5, n2=12, n4=6, n8=20)).last_native == 4
    assert choose(times(n1=15, n2=30, n4=9, n8=60)).last_native == 0


def test_native_computes_all_steps_if_the_largest_that_are_measured():
    of_both, _ = measured((0.001, 0.0001), (0.002, 0.0002))
    choice = choose(of_both)
    assert (of_both[-1].tokens, choice.last_native) == (LARGEST, ALL)
    assert "native computes all steps" in choice.describe()


def test_without_times_openvino_computes_all_steps():
    assert choose([]).last_native == 0
    assert "no time" in choose([]).describe()


def test_a_choice_is_described_with_its_times():
    text = choose(times(n1=0.005)).describe()
    assert "up to 1 tokens" in text
    assert "1: 5.0 / 10000.0" in text


class TimedRunner:
    """A runner whose steps take `seconds` of `clock` and that much more for each token."""

    block_size, max_model_len = 32, 200

    def __init__(self, clock, seconds, more):
        self.clock, self.seconds, self.more, self.steps = clock, seconds, more, []

    def run(self, step):
        self.steps.append(step)
        self.clock[0] += self.seconds + self.more * step.num_tokens


def measured(native, openvino, max_tokens=512):
    clock = [0.0]
    runners = (TimedRunner(clock, *native), TimedRunner(clock, *openvino))
    found = measure(runners, 7, max_tokens, nullcontext(), clock=lambda: clock[0])
    return list(found), runners


def test_measuring_ends_where_openvino_was_faster_twice():
    found, _ = measured((0.01, 0.01), (0.03, 0.001))
    assert [each.tokens for each in found] == [1, 2, 3, 4]
    assert choose(found).last_native == 2


def test_measuring_ends_when_its_seconds_are_over():
    found, _ = measured((0.2, 0.2), (1, 0.4))
    assert [each.tokens for each in found] == [1]


def test_measured_steps_use_a_given_block_within_the_limit_of_tokens():
    found, (native, _) = measured((0.001, 0), (0.002, 0), max_tokens=8)
    assert [each.tokens for each in found] == [size for size in SIZES if size <= 8]
    rows = [row for step in native.steps for row in step.rows]
    assert {block for row in rows for block in row.blocks} == {7}
    assert all(row.start + 1 <= len(row.blocks) * 32 for row in rows)


def test_the_engine_may_compute_between_two_measured_steps():
    class Lock:
        held = count()

        def __enter__(self):
            next(self.held)

        def __exit__(self, *error):
            return None

    lock, clock = Lock(), [0.0]
    runners = (TimedRunner(clock, 0.01, 0), TimedRunner(clock, 0.01, 0))
    list(measure(runners, 0, 1, lock, clock=lambda: clock[0]))
    assert next(Lock.held) == sum(len(runner.steps) for runner in runners)
