"""Roles of workers: which numbers are accepted, and which worker runs what."""

import pytest

from mindspore_serving.core.roles import check_roles, role_of, runs_method
from mindspore_serving.errors import InvalidInputs


def test_the_first_workers_compute_prompts_and_the_rest_decodes():
    roles = {"decode": 2, "prefill": 1}
    check_roles(roles)
    assert [role_of(roles, number) for number in range(3)] == ["prefill", "decode", "decode"]
    check_roles({})
    assert role_of({}, 0) == ""


@pytest.mark.parametrize(
    "roles",
    [{"prefill": 1}, {"decode": 2}, {"prefill": 0, "decode": 1}, {"prefill": 1, "decoder": 1}],
)
def test_roles_without_a_worker_for_both_are_refused(roles):
    with pytest.raises(InvalidInputs, match="expected numbers of workers from 1 for both prefill"):
        check_roles(roles)


def test_a_worker_with_prefill_runs_prompts_alone():
    assert runs_method("prefill", "@prefill")
    assert not runs_method("prefill", "@generate")
    assert not runs_method("decode", "@prefill")
    assert runs_method("decode", "@generate")
