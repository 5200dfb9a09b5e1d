import pytest

from mindspore_serving import errors
from mindspore_serving.errors import Code


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_an_error_comes_back_from_its_code(code):
    error = errors.from_code(int(code), "why")
    assert error.code == code
    assert str(error) == "why"


def test_scripts_that_catch_runtime_error_catch_every_error():
    assert issubclass(errors.ServingError, RuntimeError)
    assert all(isinstance(errors.from_code(code, ""), RuntimeError) for code in Code)


def test_not_found_is_a_kind_of_invalid_inputs():
    assert issubclass(errors.NotFound, errors.InvalidInputs)


def test_the_numbers_of_the_original_are_kept():
    assert [code.name for code in sorted(Code)][:6] == [
        "OK",
        "FAILED",
        "INVALID_INPUTS",
        "SYSTEM_ERROR",
        "WORKER_UNAVAILABLE",
        "SERVABLE_UNAVAILABLE",
    ]
    assert [int(code) for code in sorted(Code)][:6] == [0, 1, 2, 3, 4, 5]
