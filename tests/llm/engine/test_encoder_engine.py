"""Which prompts an encoder's engine puts into a step, with a runner that is arithmetic."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.errors import InvalidInputs, Overloaded, ServingError
from mindspore_serving.llm.checkpoint.pooling import Pooling
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.encoder import MAX_PADDED_RATIO, Encoder, EncoderEngine

SUM = Pooling(modes=("mean",), normalizes=False)


class Echo:
    """A token's state is its id, so a prompt's mean is known.  `steps` has what was asked."""

    vocab_size = 1000
    hidden_size = 1
    max_model_len = 100

    def __init__(self) -> None:
        self.steps: list[list[list[int]]] = []
        self.failure: Exception | None = None
        self.is_closed = False

    def run(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        if self.failure is not None:
            raise self.failure
        self.steps.append([list(prompt) for prompt in prompts])
        return np.array([[token] for prompt in prompts for token in prompt], np.float32)

    def close(self) -> None:
        self.is_closed = True


def engine(**options: int) -> tuple[EncoderEngine, Echo]:
    runner = Echo()
    options = {"max_num_seqs": 8, "max_num_batched_tokens": 100, **options}
    return EncoderEngine(Encoder(runner, SUM, EngineConfig(**options))), runner


def drain(subject: EncoderEngine) -> dict[str, np.ndarray]:
    found = {}
    while subject.has_work:
        outputs = subject.step()
        assert outputs  # a step with work makes progress
        for request_id, vector in outputs:
            assert request_id not in found
            found[request_id] = vector
    return found


def test_requests_of_many_clients_share_a_step() -> None:
    subject, runner = engine()
    for client in range(5):
        subject.add_embedding(f"client {client}", [client, client + 2])
    found = drain(subject)
    assert {name: vector.tolist() for name, vector in found.items()} == {
        f"client {client}": [client + 1.0] for client in range(5)
    }
    assert len(runner.steps) == 1


def test_the_oldest_prompt_is_next_together_with_its_length() -> None:
    subject, runner = engine()
    for place, length in enumerate([50, 3, 3, 48, 3]):
        subject.add_embedding(str(place), [1] * length)
    assert [request_id for request_id, _ in subject.step()] == ["0", "3"]
    assert [request_id for request_id, _ in subject.step()] == ["1", "2", "4"]
    assert [len(step) for step in runner.steps] == [2, 3]


def test_arrivals_that_fit_better_do_not_hold_up_the_oldest() -> None:
    subject, _ = engine()
    subject.add_embedding("old", [1] * 90)
    for place in range(50):
        subject.add_embedding(f"short {place}", [1] * 4)
    assert "old" in dict(subject.step())


@given(
    lengths=st.lists(st.integers(1, 100), max_size=60),
    most_tokens=st.integers(8, 200),
)
def test_every_request_is_answered_once_within_the_limits(
    lengths: list[int], most_tokens: int
) -> None:
    subject, runner = engine(max_num_batched_tokens=most_tokens)
    for place, length in enumerate(lengths):
        subject.add_embedding(str(place), [place] * length)
    found = drain(subject)
    assert {name: float(vector[0]) for name, vector in found.items()} == {
        str(place): place for place in range(len(lengths))
    }
    for step in runner.steps:
        sizes = [len(prompt) for prompt in step]
        assert len(sizes) == 1 or sum(sizes) <= most_tokens
        assert len(sizes) <= 8
        assert len(sizes) * max(sizes) <= MAX_PADDED_RATIO * sum(sizes)


@given(lengths=st.lists(st.integers(1, 100), max_size=60))
def test_offline_the_vectors_come_in_the_order_of_the_prompts(lengths: list[int]) -> None:
    subject, runner = engine()
    found = subject.encoder.embed([[place] * length for place, length in enumerate(lengths)])
    assert found[:, 0].tolist() == list(range(len(lengths)))
    assert sum(len(step) for step in runner.steps) == len(lengths)


def test_an_aborted_request_is_not_computed() -> None:
    subject, runner = engine()
    subject.add_embedding("kept", [1])
    subject.add_embedding("left", [2])
    assert subject.abort("left")
    assert not subject.abort("left")
    assert list(drain(subject)) == ["kept"]
    assert runner.steps == [[[1]]]


@pytest.mark.parametrize(
    ("failure", "text"),
    [(ServingError("the runner is closed"), "is closed"), (ValueError("secret"), "see the log")],
)
def test_a_failing_step_fails_only_its_requests(failure: Exception, text: str) -> None:
    subject, runner = engine(max_num_seqs=1)
    subject.add_embedding("first", [1])
    subject.add_embedding("second", [2])
    runner.failure = failure
    ((name, error),) = subject.step()
    assert name == "first"
    assert isinstance(error, ServingError)
    assert text in str(error)
    assert "secret" not in str(error)
    runner.failure = None
    assert list(drain(subject)) == ["second"]


def test_a_full_queue_refuses() -> None:
    subject, _ = engine(max_num_waiting=2)
    subject.add_embedding("0", [1])
    subject.add_embedding("1", [1])
    with pytest.raises(Overloaded, match="2 prompts wait already, at most 2 may"):
        subject.add_embedding("2", [1])
    subject.step()
    subject.add_embedding("2", [1])


def test_a_limit_of_waiting_tokens_does_not_refuse_a_first_request() -> None:
    subject, _ = engine(max_num_waiting_tokens=10)
    subject.add_embedding("long", [1] * 20)
    with pytest.raises(Overloaded, match="prompts with 20 tokens wait already, at most 10 may"):
        subject.add_embedding("short", [1])
    subject.abort("long")
    subject.add_embedding("short", [1] * 4)
    subject.add_embedding("another", [1] * 6)


@pytest.mark.parametrize("prompt", [[], [1000], [-1], [1] * 101, ["a"], [1.5]])
def test_a_prompt_that_cannot_be_embedded_is_refused(prompt: list) -> None:
    subject, _ = engine()
    with pytest.raises(InvalidInputs):
        subject.add_embedding("x", prompt)
    assert not subject.has_work


def test_a_name_is_used_once_at_a_time() -> None:
    subject, _ = engine()
    subject.add_embedding("x", [1])
    with pytest.raises(InvalidInputs, match="'x' is in use"):
        subject.add_embedding("x", [1])


def test_stats_count_waiting_requests_and_tokens() -> None:
    subject, _ = engine()
    subject.add_embedding("x", [1, 2, 3])
    assert subject.stats().num_waiting == 1
    drain(subject)
    assert subject.stats().num_waiting == 0
    assert subject.stats().num_steps == 1
    assert subject.stats().num_prompt_tokens == 3


def test_closing_frees_the_model() -> None:
    subject, runner = engine()
    subject.close()
    assert runner.is_closed


def test_nothing_is_generated() -> None:
    subject, _ = engine()
    with pytest.raises(InvalidInputs, match="generates no text"):
        subject.add("x", [1], object(), priority=1)
    assert not subject.has_work
