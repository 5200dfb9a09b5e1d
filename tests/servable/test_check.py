import pytest

from mindspore_serving.errors import Code, InvalidInputs
from mindspore_serving.servable import check


def refused(function, *args):
    with pytest.raises(RuntimeError) as caught:
        function(*args)
    assert isinstance(caught.value, InvalidInputs)
    assert caught.value.code is Code.INVALID_INPUTS
    return str(caught.value)


def test_values_that_fit_are_returned():
    assert check.check_str("n", "a") == "a"
    assert check.check_bytes("n", b"a") == b"a"
    assert check.check_bool("n", False) is False
    assert check.check_int("n", 3, 3, 3) == 3
    assert check.check_port("n", 65535) == 65535


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (check.check_str, 1, "Parameter 'n' should be str, but actually <class 'int'>"),
        (check.check_str, "", "Parameter 'n' should not be empty str"),
        (check.check_bytes, "a", "Parameter 'n' should be bytes, but actually <class 'str'>"),
        (check.check_bytes, b"", "Parameter 'n' should not be empty bytes"),
        (check.check_bool, 1, "Parameter 'n' should be bool, but actually <class 'int'>"),
        (check.check_int, True, "Parameter 'n' should be int, but actually <class 'bool'>"),
        (check.check_int, 1.0, "Parameter 'n' should be int, but actually <class 'float'>"),
        (
            check.check_int_tuple,
            1,
            "Parameter 'n' should be tuple/list of int, but actually <class 'int'>",
        ),
        (
            check.as_int_tuple,
            "1",
            "Parameter 'n' should be int or tuple/list of int, but actually <class 'str'>",
        ),
        (
            check.as_int_tuple,
            True,
            "Parameter 'n' should be int or tuple/list of int, but actually <class 'bool'>",
        ),
        (
            check.as_int_tuple,
            [1, "2"],
            "The item value '2' in parameter 'n' should be int, but actually <class 'str'>",
        ),
        (
            check.as_int_tuple,
            (1, 2, 1),
            "The item value '1' in parameter 'n' should not be repeated",
        ),
        (
            check.as_str_tuple,
            3,
            "Parameter 'n' should be str or tuple/list of str, but actually <class 'int'>",
        ),
        (
            check.as_str_tuple,
            ["a", 3],
            "The item of parameter 'n' should be str, but actually <class 'int'>",
        ),
        (check.as_str_tuple, ["a", ""], "The item of parameter 'n' should not be empty str"),
        (check.as_str_tuple, "", "Parameter 'n' should not be empty str"),
        (check.as_str_tuple, [], "Parameter 'n' should not be an empty tuple or list"),
        (
            check.as_str_tuple,
            ["a", "a"],
            "The item value 'a' in parameter 'n' should not be repeated",
        ),
        (check.as_nested_str_tuple, [], "Parameter 'n' should not be an empty tuple or list"),
    ],
)
def test_errors_name_the_value_and_accepted_values(function, value, text):
    assert refused(function, "n", value) == text


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((2, 4), "Parameter 'n' should be in range [2,4], but actually {}"),
        ((2, None), "Parameter 'n' should be >= 2, but actually {}"),
    ],
)
def test_a_number_below_its_range_is_refused_with_the_range(bounds, text):
    assert refused(check.check_int, "n", 1, *bounds) == text.format(1)


@pytest.mark.parametrize("bounds", [(2, 4), (None, 4)])
def test_a_number_above_its_range_is_refused_with_the_range(bounds):
    expected = "in range [2,4]" if bounds[0] else "<= 4"
    assert refused(check.check_int, "n", 5, *bounds).startswith(
        f"Parameter 'n' should be {expected}"
    )


def test_an_item_out_of_range_is_named_itself():
    assert refused(check.as_int_tuple, "n", [0, -1], 0).startswith(
        "The item value '-1' in parameter 'n' should be >= 0"
    )
    assert refused(check.as_int_tuple, "n", -1, 0).startswith(
        "The item value '-1' in parameter 'n' should be >= 0"
    )


@pytest.mark.parametrize("port", [0, 65536])
def test_a_port_is_in_its_range(port):
    assert "in range [1,65535]" in refused(check.check_port, "n", port)


def test_a_value_or_a_list_becomes_a_tuple():
    assert check.as_int_tuple("n", 0) == (0,)
    assert check.as_int_tuple("n", [3, 1]) == (3, 1)
    assert check.as_str_tuple("n", "ab") == ("ab",)
    assert check.as_str_tuple("n", ("b", "a")) == ("b", "a")


def test_nested_lists_become_nested_tuples_and_a_text_is_not_split():
    assert check.as_nested_str_tuple("n", "ab") == (("ab",),)
    assert check.as_nested_str_tuple("n", ["a", ["b", "c"]]) == (("a",), ("b", "c"))
    assert check.as_nested_str_tuple("n", ["a", "a"]) == (("a",), ("a",))


@pytest.mark.parametrize("name", ["a", "resnet-50", "v1.2", "_x", "9", "a" * 128])
def test_a_servable_may_be_called(name):
    assert check.check_servable_name("n", name) == name


@pytest.mark.parametrize("name", [".a", "..", "a/b", "a b", "é", "a\n", "a" * 129, "a\x00"])
def test_a_servable_may_not_be_called(name):
    assert "Parameter 'n' should be 1 to 128 letters" in refused(
        check.check_servable_name, "n", name
    )


def test_a_key_has_16_24_or_32_bytes():
    for length in (16, 24, 32):
        check.check_dec(b"k" * length, "AES-CBC")
    check.check_dec(None, "AES-GCM")
    text = refused(check.check_dec, b"k" * 17, "AES-GCM")
    assert text == "Parameter 'dec_key' length 17 expected to be 16, 24 or 32"
    assert "should be bytes" in refused(check.check_dec, "k" * 16, "AES-GCM")
    assert "should not be empty bytes" in refused(check.check_dec, b"", "AES-GCM")


def test_a_cipher_has_mode_gcm_or_cbc():
    assert "expected to be 'AES-GCM' or 'AES-CBC'" in refused(check.check_dec, None, "AES-ECB")
