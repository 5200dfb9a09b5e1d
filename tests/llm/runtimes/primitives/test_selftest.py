"""The self-test of primitives: a process that crashes or hangs is a row, and the rest goes on."""

import numpy as np
import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.mindspore.primitives import broken_primitives
from mindspore_serving.llm.runtimes.mindspore.primitives.cases import cases, refusals, rounded
from mindspore_serving.llm.runtimes.mindspore.primitives.rules import RULES
from mindspore_serving.llm.runtimes.mindspore.primitives.selftest import CASE_NAMES, SelfTest
from mindspore_serving.llm.runtimes.mindspore.primitives.selftest_process import compare

SCRIPTED = "tests.llm.runtimes.primitives.scripted_selftest"


def scripted(*names, deadline=60.0):
    return SelfTest("ascend", "ascend", deadline, SCRIPTED, names)


def test_every_primitive_of_a_single_device_has_a_case_but_the_mask() -> None:
    assert set(CASE_NAMES) == RULES.keys() - {"attention_mask", "all_reduce", "all_gather"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_contracts_accept_the_cases_of_half_floats(dtype) -> None:
    assert [refusals(case, dtype) for case in cases(dtype)] == [[]] * len(CASE_NAMES)


def test_a_soc_with_another_layout_of_caches_refuses_their_cases() -> None:
    refused = {case.name for case in cases("float16") if refusals(case, "float16", "ascend310p")}
    assert refused == {"reshape_and_cache", "paged_attention", "mla"}


def test_a_crash_and_a_difference_are_rows_and_the_test_continues() -> None:
    opened = []
    rows = list(scripted("rms_norm", "rope", "swiglu", "matmul").run(opened.append))
    assert [(row.name, row.problem) for row in rows] == [
        ("rms_norm", ""),
        ("rope", "the process ended by signal SIGSEGV"),
        ("swiglu", ""),
        ("matmul", "output 0 differs by 0.5 of its largest"),
    ]
    assert len(opened) == 2


def test_a_hanging_primitive_is_a_row_after_its_deadline() -> None:
    *_, row = scripted("top_k", deadline=5.0).run(lambda _: None)
    assert row.problem == "no result within 5 s"


def test_a_device_that_does_not_open_is_an_error_with_the_reason() -> None:
    with pytest.raises(StartError, match="the device ascend cannot be opened: device 0 is busy"):
        list(scripted("argmax").run(lambda _: None))


def test_broken_primitives_of_a_server_are_those_of_the_self_test() -> None:
    self_test = scripted("rms_norm", "rope", "matmul")
    assert broken_primitives(self_test=self_test) == {"rope", "matmul"}


def test_broken_primitives_are_named_by_the_option() -> None:
    assert broken_primitives("rope, mla") == {"rope", "mla"}
    assert broken_primitives("none") == set()
    assert broken_primitives("all") == RULES.keys()
    with pytest.raises(StartError, match="'ropes' is no primitive of the device, expected all"):
        broken_primitives("ropes")


def test_rounding_to_bfloat16_is_to_the_nearest_with_ties_to_even() -> None:
    numbers = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.1415927], np.float32)
    expected = [1, 1, 1 + 2**-6, 1 + 2**-7, -3.140625]
    assert rounded(numbers, "bfloat16").tolist() == expected


def test_comparison_names_shapes_numbers_and_integers_that_differ() -> None:
    right = np.array([2.0, -4.0], np.float32)
    assert compare([right], [right], 0.01, 0) == (0.0, "")
    assert compare([right + 0.2], [right], 0.01, 0)[1] == "output 0 differs by 0.05 of its largest"
    assert "not finite" in compare([right * np.inf], [right], 0.01, 0)[1]
    assert "shape (1,), expected (2,)" in compare([right[:1]], [right], 0.01, 0)[1]
    integers = np.array([1, 2], np.int32)
    assert compare([integers + 1], [integers], 0.01, 1) == (0.0, "")
    assert "integers of output 0" in compare([integers + 2], [integers], 0.01, 1)[1]
