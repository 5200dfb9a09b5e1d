"""What is counted of a generation's times."""

from types import SimpleNamespace

import pytest

from mindspore_serving.core.sampling_params import FinishReason
from mindspore_serving.llm.serving import recording
from mindspore_serving.llm.serving.recording import GenerationRecorder, Timeline, Timing

WAIT = 2.5  # seconds, by the clock that the test sets


@pytest.fixture
def clock(monkeypatch):
    """clock.now is the time."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(recording, "time", SimpleNamespace(monotonic=lambda: Clock.now))
    return Clock


def counted(recorder, name):
    """(how many, their sum)"""
    total, counts = recorder.counts()[f"serving_llm_{name}"]
    return sum(counts), total


def test_the_wait_for_the_first_step_is_counted_once_known(clock):
    timing = Timing(recorder := GenerationRecorder(), line := Timeline(accepted=100.0, ready=101.0))
    assert counted(recorder, "queue_seconds") == (0, 0)
    line.first_step = 101.0 + WAIT
    timing.begin()
    assert counted(recorder, "queue_seconds") == (1, WAIT)


def test_a_generation_is_cut_into_queue_prompt_and_tokens(clock):
    line = Timeline(100.0, first_step=102.0, num_prompt_tokens=7, num_generated_tokens=4)
    timing = Timing(recorder := GenerationRecorder(), line)
    for clock.now, num_tokens in ((105.0, 1), (106.0, 1), (110.0, 2)):
        timing.add(0, num_tokens, None)
    timing.add(0, 0, FinishReason.STOP)
    timing.end()
    assert counted(recorder, "time_to_first_token_seconds") == (1, 5.0)
    assert counted(recorder, "prefill_seconds") == (1, 3.0)
    assert counted(recorder, "inter_token_seconds") == (3, 5.0), "tokens of one step share its time"
    assert counted(recorder, "decode_seconds") == (1, 5.0)
    assert counted(recorder, "inference_seconds") == (1, 8.0)
    assert counted(recorder, "generation_seconds") == (1, 10.0)
    assert counted(recorder, "request_prompt_tokens") == (1, 7)
    assert counted(recorder, "request_generated_tokens") == (1, 4)
    assert recorder.answers == {"stop": 1}


def test_tokens_of_different_answers_do_not_follow_each_other(clock):
    timing = Timing(recorder := GenerationRecorder(), Timeline(100.0, first_step=100.0))
    for clock.now, index in ((101.0, 0), (102.0, 1), (104.0, 0)):
        timing.add(index, 1, None)
    assert counted(recorder, "time_to_first_token_seconds") == (1, 1.0)
    assert counted(recorder, "inter_token_seconds") == (1, 3.0)


def test_a_generation_that_fails_before_its_first_token_has_no_times(clock):
    timing = Timing(recorder := GenerationRecorder(), Timeline(100.0, first_step=101.0))
    timing.add(0, 0, FinishReason.ERROR)
    timing.end()
    assert recorder.answers == {"error": 1}
    assert counted(recorder, "generation_seconds") == (0, 0)
    assert counted(recorder, "request_generated_tokens") == (1, 0)
