"""Which versions are served side by side."""

import pytest

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.servable.version_policy import choose


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        ("latest", [10]),
        ("latest:1", [10]),
        ("latest:2", [3, 10]),
        ("latest:9", [1, 3, 10]),
        ("all", [1, 3, 10]),
        ("3", [3]),
        ("10,1", [1, 10]),
        ("1,7", [1]),
        ("7", []),
    ],
)
def test_versions_are_chosen_by_the_policy(policy, chosen):
    assert choose(policy, [1, 3, 10]) == chosen


@pytest.mark.parametrize("policy", ["latest", "latest:2", "all", "1"])
def test_where_there_are_none_none_is_chosen(policy):
    assert choose(policy, []) == []


@pytest.mark.parametrize(
    "policy",
    [
        "",
        "newest",
        "latest:0",
        "latest:",
        "latest:-1",
        "1,,2",
        "v1",
        "9" * 5000,
        "latest:" + "9" * 5000,
    ],
)
def test_another_policy_is_refused(policy):
    with pytest.raises(InvalidInputs, match="expected 'latest', 'latest:N', 'all' or versions"):
        choose(policy, [1, 3])
