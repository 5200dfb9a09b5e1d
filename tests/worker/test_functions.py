"""The user's functions: what they are given, what they may return, and whose failure it is."""

import asyncio
import sys

import numpy as np
import pytest

from mindspore_serving import log
from mindspore_serving.errors import InvalidInputs, StageFailed
from mindspore_serving.worker.functions import MAX_LOGGED_LINES, FunctionCaller


def caller(function, num_outputs=1):
    return FunctionCaller(function, "tiny.f", num_outputs)


def rows(*numbers):
    return [(np.int64(number),) for number in numbers]


def shown(outcomes):
    """Values as plain numbers, failures as their text."""
    return [
        str(outcome) if isinstance(outcome, Exception) else [value.tolist() for value in outcome]
        for outcome in outcomes
    ]


# --- one instance at a time ---------------------------------------------------------------------


def test_a_function_gets_the_inputs_as_separate_arguments():
    outcomes = caller(lambda a, b: a - b).call_each([(5, 3), (1, 7)])
    assert shown(outcomes) == [[2], [-6]]


def test_several_outputs_are_a_tuple_or_a_list():
    assert shown(caller(lambda x: (x, x * 2), 2).call_each(rows(4))) == [[4, 8]]
    assert shown(caller(lambda x: [x, x * 2], 2).call_each(rows(4))) == [[4, 8]]


def test_an_instance_that_raises_fails_alone():
    def reciprocal(x):
        if x == 0:
            raise ValueError("division by zero")
        return 1 / x

    assert shown(caller(reciprocal).call_each(rows(2, 0, 4))) == [
        [0.5],
        "division by zero",
        [0.25],
    ]


def test_an_exception_without_text_is_told_by_its_type():
    def fail(x):
        raise LookupError

    assert shown(caller(fail).call_each(rows(0))) == ["LookupError"]


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        (SystemExit(3), "SystemExit(3)"),
        (KeyboardInterrupt(), "KeyboardInterrupt()"),
        (asyncio.CancelledError(), "CancelledError()"),
    ],
    ids=repr,
)
def test_an_exception_that_would_end_a_process_fails_its_instance(raised, text):
    def leave(x):
        if x == 0:
            raise raised
        return x

    def leave_batch(instances):
        return [leave(x) for (x,) in instances]

    expected = [[2], text, [4]]
    assert shown(caller(leave).call_each(rows(2, 0, 4))) == expected
    assert shown(caller(leave_batch).call_batch(rows(2, 0, 4))) == expected


def test_a_generator_that_calls_sys_exit_fails_behind_its_pieces():
    def pieces(x):
        yield x
        sys.exit("enough")

    assert shown(caller(pieces).iterate((np.int64(1),))) == [[1], "SystemExit('enough')"]


def test_an_error_of_ours_keeps_its_code():
    def refuse(x):
        raise InvalidInputs("too small")

    (outcome,) = caller(refuse).call_each(rows(0))
    assert type(outcome) is InvalidInputs


def test_any_other_exception_is_a_failed_stage():
    (outcome,) = caller(lambda x: x.missing).call_each(rows(0))
    assert type(outcome) is StageFailed


def test_the_traceback_of_a_function_is_logged_at_debug_alone(capsys):
    def divide(x):
        return 1 // int(x)

    try:
        for level, count in (("1", 0), ("0", 1)):
            log.set_level(level)
            caller(divide).call_each(rows(0))
            logged = capsys.readouterr().err
            assert logged.count("Traceback (most recent call last)") == count
            assert logged.count("ZeroDivisionError: integer") == count
    finally:
        log.set_level(None)


def test_the_traceback_of_a_function_is_logged_once_without_its_message(capsys):
    def check(x):
        raise ValueError(f"secret {int(x)}")

    called = caller(check)
    assert [str(one) for one in called.call_each(rows(1, 2))] == ["secret 1", "secret 2"]
    logged = capsys.readouterr().err
    assert logged.count("raised ValueError here") == logged.count("in check") == 1
    assert "secret 1" not in logged
    assert logged.count("  File ") == 1


def test_not_every_place_that_raises_is_logged(capsys):
    source = "\n".join(f"    if x == {i}: raise ValueError" for i in range(MAX_LOGGED_LINES + 5))
    names = {}
    exec(f"def many(x):\n{source}", names)
    caller(names["many"]).call_each(rows(*range(MAX_LOGGED_LINES + 5)))
    assert capsys.readouterr().err.count("raised ValueError here") == MAX_LOGGED_LINES


@pytest.mark.parametrize(
    ("num_outputs", "result", "count"), [(1, (1, 2), 2), (2, 1, 1), (2, (1, 2, 3), 3), (1, [], 0)]
)
def test_a_wrong_count_of_outputs_is_told_with_both_counts(num_outputs, result, count):
    (text,) = shown(caller(lambda x: result, num_outputs).call_each(rows(0)))
    assert text == (
        f"The outputs number {count} of one instance returned by function 'tiny.f' is not equal "
        f"to the outputs number {num_outputs} registered"
    )


@pytest.mark.parametrize(
    "result", [None, {}, object(), {1, 2}], ids=lambda value: type(value).__name__
)
def test_a_result_of_an_unsupported_type_fails_its_instance(result):
    (text,) = shown(caller(lambda x: result).call_each(rows(0)))
    assert text.startswith(f"Get illegal result data with type {type(result)}")
    assert ("the function has no return" in text) == (result is None)


def test_the_error_of_a_missing_key_says_key_error():
    assert shown(caller(lambda x: {}["size"]).call_each(rows(0))) == ["KeyError: 'size'"]


def test_an_error_of_python_says_its_type_and_the_arguments():
    assert shown(caller(lambda x: 1 // x).call_each([(0,)])) == [
        "ZeroDivisionError: integer division or modulo by zero"
    ]
    (text,) = shown(caller(lambda x, y: x.upper()).call_each([(np.zeros((2, 3), "f4"), "a")]))
    assert text == (
        "AttributeError: 'numpy.ndarray' object has no attribute 'upper'; the function was called "
        "with float32 [2, 3], a str"
    )


def test_a_text_in_place_of_bytes_is_answered_with_how_bytes_are_sent():
    (text,) = shown(caller(lambda x: b"".join([x])).call_each([("a",)]))
    assert text.endswith('called with a str: bytes are sent as {"b64": BASE64}')


def test_a_number_for_an_argument_annotated_as_str_is_a_wrong_input():
    def upper(text: str) -> str:
        return text.upper()

    (outcome,) = caller(upper).call_each([(np.int32(5),)])
    assert isinstance(outcome, InvalidInputs)
    assert str(outcome).startswith("argument 'text' is int32 [], expected a text: AttributeError")


def test_bytes_are_seen_as_uint8_and_other_inputs_as_they_are():
    seen = []

    def look(*values):
        seen.extend(values)
        return 0

    array = np.arange(2)
    caller(look).call_each([(b"\x01\xff", "text", array)])
    assert seen[0].dtype == np.uint8
    assert seen[0].tolist() == [1, 255]
    assert seen[1] == "text"
    assert seen[2] is array


# --- batches ------------------------------------------------------------------------------------


def test_a_batch_function_gets_tuples_and_returns_a_result_for_each():
    given = []

    def double(instances):
        given.append(instances)
        return [x * 2 for (x,) in instances]

    assert shown(caller(double).call_batch(rows(1, 2, 3))) == [[2], [4], [6]]
    assert given == [((1,), (2,), (3,))]
    assert type(given[0]) is tuple
    assert type(given[0][0]) is tuple


def test_a_generator_yields_a_result_for_each():
    def double(instances):
        for (x,) in instances:
            yield x * 2

    assert shown(caller(double).call_batch(rows(1, 2, 3))) == [[2], [4], [6]]


def test_an_array_is_taken_row_by_row():
    def double(instances):
        return np.array([x for (x,) in instances]) * 2

    assert shown(caller(double).call_batch(rows(1, 2))) == [[2], [4]]


def test_several_outputs_of_a_batch_are_tuples():
    def both(instances):
        return [(x, x + 1) for (x,) in instances]

    assert shown(caller(both, 2).call_batch(rows(1, 5))) == [[1, 2], [5, 6]]


def test_a_generator_that_raises_fails_that_instance_and_continues():
    sizes = []

    def double(instances):
        sizes.append(len(instances))
        for (x,) in instances:
            if x < 0:
                raise ValueError(f"{x} is negative")
            yield x * 2

    outcomes = caller(double).call_batch(rows(1, -2, 3, -4))
    assert shown(outcomes) == [[2], "-2 is negative", [6], "-4 is negative"]
    assert sizes == [4, 2]  # the second call gets what was behind the first failure


def test_a_batch_function_that_raises_is_called_again_for_each_instance():
    sizes = []

    def double(instances):
        sizes.append(len(instances))
        if any(x < 0 for (x,) in instances):
            raise ValueError("negative")
        return [x * 2 for (x,) in instances]

    assert shown(caller(double).call_batch(rows(1, -2, 3))) == [[2], "negative", [6]]
    assert sizes == [3, 1, 1, 1]


def test_a_function_that_raises_for_a_batch_of_1_is_not_called_again():
    sizes = []

    def fail(instances):
        sizes.append(len(instances))
        raise ValueError("no")

    assert shown(caller(fail).call_batch(rows(1))) == ["no"]
    assert sizes == [1]


@pytest.mark.parametrize("kind", [list, iter], ids=["list", "iterator"])
def test_instances_without_a_result_fail(kind):
    def short(instances):
        return kind([x * 2 for (x,) in instances[:1]])

    text = (
        "The number 1 of instances returned by function 'tiny.f' is not equal to the number 3 of "
        "instances provided to this function."
    )
    assert shown(caller(short).call_batch(rows(1, 2, 3))) == [[2], text, text]


def test_results_beyond_the_instances_are_ignored():
    assert shown(caller(lambda batch: [1, 2, 3]).call_batch(rows(7, 8))) == [[1], [2]]


def test_a_generator_with_more_results_is_closed():
    ended = []

    def endless(instances):
        try:
            while True:
                yield 1
        finally:
            ended.append(True)

    assert shown(caller(endless).call_batch(rows(7, 8))) == [[1], [1]]
    assert ended == [True]


@pytest.mark.parametrize("count", [1, 2])
def test_a_batch_function_that_returns_no_sequence_is_told_so(count):
    outcomes = shown(caller(lambda batch: 5).call_batch(rows(*range(count))))
    assert (
        outcomes
        == [
            f"Function 'tiny.f' should return or yield one result for each of {count} "
            "instances, but returned <class 'int'>"
        ]
        * count
    )


def test_a_wrong_result_in_a_batch_fails_its_instance_alone():
    outcomes = shown(caller(lambda batch: [1, None, (1, 2), 4]).call_batch(rows(1, 2, 3, 4)))
    assert (outcomes[0], outcomes[3]) == ([1], [4])
    assert outcomes[1].startswith("Get illegal result data with type <class 'NoneType'>")
    assert outcomes[2].startswith("The outputs number 2 of one instance")


def test_bytes_in_a_batch_are_seen_as_uint8():
    def total(instances):
        return [data.sum() for (data,) in instances]

    assert shown(caller(total).call_batch([(b"\x01\x02",), (b"\xff",)])) == [[3], [255]]
