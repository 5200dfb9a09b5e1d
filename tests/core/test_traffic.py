"""Which version a request gets: by key, by turn, and while versions are missing."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from mindspore_serving.core import traffic
from mindspore_serving.errors import InvalidInputs

KEYS = [f"user {number}" for number in range(5000)]


def by_key(weights: dict[int, float], keys: list[str] = KEYS) -> list[int]:
    return [traffic.choose_by_key(weights, "toy", key) for key in keys]


def options(**changed: Any) -> Any:
    plain = {"traffic": None, "shadow": None, "sticky": "", "shadow_tolerance": 0}
    return SimpleNamespace(**plain | changed)


def test_keys_are_split_by_weight() -> None:
    counts = Counter(by_key({1: 70, 2: 20, 3: 10, 4: 0}))
    assert {version: round(count / 5000, 2) for version, count in counts.items()} == {
        1: pytest.approx(0.70, abs=0.02),
        2: pytest.approx(0.20, abs=0.02),
        3: pytest.approx(0.10, abs=0.02),
    }


def test_only_the_keys_of_the_changed_share_move() -> None:
    before, after = by_key({1: 90, 2: 10}), by_key({1: 80, 2: 20})
    moved = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
    assert set(moved) == {(1, 2)}
    assert len(moved) / 5000 == pytest.approx(0.1, abs=0.02)


def test_keys_of_a_missing_version_alone_move() -> None:
    weights = {1: 50.0, 2: 30.0, 3: 20.0}
    left = traffic.available(weights, {1, 3}, weights)
    for before, after in zip(by_key(weights), by_key(dict(left)), strict=True):
        assert after == before if before != 2 else after in (1, 3)


def test_the_choice_of_a_key_is_the_same_in_every_process() -> None:
    keys = ["ann", "bob", "zoë", "\udc80", ""]
    assert by_key({1: 50, 2: 50}, keys) == EXPECTED
    other = [traffic.choose_by_key({1: 50, 2: 50}, "other", key) for key in KEYS[:50]]
    assert other != by_key({1: 50, 2: 50}, KEYS[:50])


EXPECTED = [2, 1, 2, 2, 2]  # as computed once: other processes must agree


@pytest.mark.parametrize("start", [0, 7, 10**12])
def test_any_hundred_turns_are_split_nearly_exactly(start: int) -> None:
    turns = range(start, start + 100)
    counts = Counter(traffic.choose_by_turn({1: 90, 2: 10, 3: 0}, turn) for turn in turns)
    assert counts[1] + counts[2] == 100
    assert abs(counts[2] - 10) <= 2


def test_a_version_with_all_the_weight_gets_all() -> None:
    weights = {1: 0.0, 2: 5.0}
    assert {traffic.choose_by_turn(weights, turn) for turn in range(200)} == {2}
    assert set(by_key(weights)) == {2}


def test_the_first_choice_with_a_weight_counts() -> None:
    weights = {1: 90.0, 2: 10.0}
    assert traffic.available(weights, [2], [1, 2]) == {2: 10}
    assert traffic.available(weights, [], [1]) == {1: 90}
    assert traffic.available(weights, [3], [3]) == weights


def test_options_are_read() -> None:
    checked = traffic.check_traffic(
        options(traffic={1: 90, "2": 10}, shadow={3: 0.5}, sticky="Header:X-User")
    )
    rule = traffic.rule_of(SimpleNamespace(**checked))
    assert rule is not None
    assert (rule.weights, rule.shadows) == ({1: 90, 2: 10}, {3: 0.5})
    assert (rule.header, rule.versions) == ("x-user", {1, 2, 3})
    assert traffic.rule_of(SimpleNamespace(**traffic.check_traffic(options()))) is None
    assert traffic.parse_weights("1=90, 2=.5") == {"1": 90, "2": 0.5}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"traffic": {1: 0, 2: 0}}, "a weight over 0"),
        ({"traffic": {1: -1}}, "numbers of 0 to 1e+09"),
        ({"traffic": {0: 1}}, "by version"),
        ({"traffic": {"one": 1}}, "by version"),
        ({"traffic": {True: 1}}, "by version"),
        ({"traffic": {1: float("nan")}}, "by version"),
        ({"traffic": {1: "90"}}, "by version"),
        ({"traffic": [90, 10]}, "by version"),
        ({"traffic": dict.fromkeys(range(1, 66), 1)}, "at most 64 versions"),
        ({"shadow": {2: 101}}, "numbers of 0 to 100"),
        ({"sticky": "user"}, "'header:x-user'"),
        ({"sticky": "header:"}, "'header:x-user'"),
        ({"sticky": "header:a b"}, "'header:x-user'"),
        ({"sticky": 1}, "'header:x-user'"),
        ({"shadow_tolerance": -1}, "a number from 0"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputs) as raised:
        traffic.check_traffic(options(**wrong))
    assert text in str(raised.value)


@pytest.mark.parametrize("text", ["1", "1=", "1=a", "1=2,1=3"])
def test_wrong_words_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputs):
        traffic.parse_weights(text)


def test_a_version_that_is_not_served_is_refused() -> None:
    checked = SimpleNamespace(
        **traffic.check_traffic(options(traffic={1: 1, 2: 0, 4: 1}, shadow={5: 1}))
    )
    traffic.check_versions("toy", checked, [1, 4, 5])
    with pytest.raises(InvalidInputs, match="version 4, 5, but the versions .* are 1, 3"):
        traffic.check_versions("toy", checked, [3, 1])
