"""Operators of an Ascend device, with equals that run anywhere.  See `table`.

`broken_primitives` imports no MindSpore, so that a server can call it before it opens the device.
"""

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.mindspore.primitives.rules import RULES
from mindspore_serving.llm.runtimes.mindspore.primitives.selftest import SelfTest

AUTO, ALL, NONE = "auto", "all", "none"


def broken_primitives(composed: str = AUTO, *, self_test: SelfTest | None = None) -> frozenset[str]:
    """Return the primitives that a server on an Ascend device composes of plain operators.

    `composed` is "auto" for those that the self-test finds wrong on this device, each of which is
    logged, "all", "none", or names divided by commas.

    Raises StartError for an unknown name, and for a device that cannot be opened.
    """
    if composed != AUTO:
        return named_primitives(composed)
    broken = {}
    for checked in (self_test or SelfTest()).run(lambda opened: None):
        if checked.problem:
            broken[checked.name] = checked.problem
    for name, problem in broken.items():
        log.warning(
            "the primitive %s is wrong on this device (%s): it is computed by plain operators; "
            "`mindspore-serving ascend-check` makes a report", name, problem,
        )  # fmt: skip
    return frozenset(broken)


def named_primitives(names: str) -> frozenset[str]:
    """Return the primitives of "all", "none" or names divided by commas.

    Raises StartError for an unknown name.
    """
    if names in (ALL, NONE):
        return frozenset(RULES if names == ALL else ())
    chosen = frozenset(name.strip() for name in names.split(","))
    if unknown := sorted(chosen - RULES.keys()):
        raise StartError(
            f"{unknown[0]!r} is no primitive of the device, expected {ALL}, {NONE} or names of: "
            f"{', '.join(RULES)}"
        )
    return chosen
