"""Each composed cell equals its golden in the calls that a device is checked with."""

import pytest

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

from mindspore_serving.llm.runtimes.mindspore.primitives.cases import cases  # noqa: E402
from mindspore_serving.llm.runtimes.mindspore.primitives.selftest_process import (  # noqa: E402
    check_case,
)

CASES = {f"{index}-{case.name}": case for index, case in enumerate(cases("float32"))}


@pytest.mark.parametrize("name", CASES)
def test_a_composed_cell_equals_its_golden(name: str) -> None:
    checked = check_case(CASES[name], "composed", "float32")
    assert checked.problem == ""
    assert checked.error <= checked.tolerance


def test_composed_attention_equals_its_golden_in_float16() -> None:
    case, _ = (case for case in cases("float16") if case.name == "paged_attention")
    assert check_case(case, "composed", "float16").problem == ""


def test_a_device_without_a_kernel_is_reported_with_its_message() -> None:
    checked = check_case(next(iter(CASES.values())), "ascend", "float32")
    assert "Unsupported op [RmsNorm] on CPU" in checked.problem
