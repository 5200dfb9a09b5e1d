"""Roles of the workers of a language model: which of them compute prompts, and which decode.

Decisions only: knows no worker.
"""

from collections.abc import Mapping

from mindspore_serving.errors import InvalidInputs

PREFILL, DECODE = "prefill", "decode"
PREFILL_METHOD = "@prefill"  # computes a prompt for a worker that decodes


def check_roles(roles: Mapping[str, int]) -> None:
    """Raise InvalidInputs unless `roles` has a number of workers for both roles, or is empty."""
    if roles and (set(roles) != {PREFILL, DECODE} or min(roles.values()) < 1):
        raise InvalidInputs(
            f"Parameter 'roles' is {dict(roles)!r:.200}, expected numbers of workers from 1 for "
            f"both {PREFILL} and {DECODE}, as {PREFILL}=1,{DECODE}=2"
        )


def role_of(roles: Mapping[str, int], number: int) -> str:
    """Return the role of worker `number`, from 0; "" if the workers have no roles."""
    if not roles:
        return ""
    return PREFILL if number < roles[PREFILL] else DECODE


def runs_method(role: str, method: str) -> bool:
    """Return whether a worker of `role` runs `method`: prompts alone, or everything else."""
    return (role == PREFILL) is (method == PREFILL_METHOD)
