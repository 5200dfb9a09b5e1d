"""The classification extension: the largest values of an output, as Triton writes them."""

import numpy as np
import pytest

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.wire import worker_codec
from mindspore_serving.wire.v2 import classification
from mindspore_serving.wire.v2.classification import classify
from mindspore_serving.wire.v2.outputs import OutputTensor, join


def tensor_of(*values: object, is_batched: bool = True) -> OutputTensor:
    encoded = [worker_codec("v2_raw").encode({"y": value}) for value in values]
    (tensor,) = join(encoded, is_batched=is_batched)
    return tensor


def texts(tensor: OutputTensor) -> list[str]:
    """Return the elements of BYTES: each is its length in four bytes, and its text."""
    data, elements = b"".join(tensor.raw), []
    while data:
        size = int.from_bytes(data[:4], "little")
        elements.append(data[4 : 4 + size].decode())
        data = data[4 + size :]
    return elements


def test_the_largest_values_come_first_with_index_and_label() -> None:
    rows = np.float32([[0.1, 0.826453, 0.05], [3, 1, 2]])
    result = classify(tensor_of(*rows), 2, ("cat", "mug"), is_batched=True)
    assert (result.name, result.datatype, result.shape) == ("y", "BYTES", (2, 2))
    assert texts(result) == ["0.826453:1:mug", "0.100000:0:cat", "3.000000:0:cat", "2.000000:2"]
    assert result.json_data == (
        b'["0.826453:1:mug","0.100000:0:cat","3.000000:0:cat","2.000000:2"]'
    )


def test_a_tensor_without_a_batch_is_classified_whole() -> None:
    whole = tensor_of(np.int64([[5, 2**62 + 1], [2**62, -1]]), is_batched=False)
    result = classify(whole, 9, (), is_batched=False)
    assert result.shape == (4,)
    assert texts(result) == [f"{2**62 + 1}:1", f"{2**62}:2", "5:0", "-1:3"]


@pytest.mark.parametrize("dtype", ["u1", "<u8", "<i2", "<f2", "<f8"])
def test_equal_values_are_in_the_order_of_their_indices(dtype: str) -> None:
    result = classify(tensor_of(np.array([1, 3, 3, 0, 3], dtype)), 4, (), is_batched=True)
    assert [text.split(":")[1] for text in texts(result)] == ["1", "2", "4", "0"]


def test_values_that_are_no_numbers_come_last() -> None:
    row = np.float32([np.nan, -1, np.inf, np.nan])
    result = classify(tensor_of(row), 3, (), is_batched=True)
    assert texts(result) == ["inf:2", "-1.000000:1", "nan:0"]


@pytest.mark.parametrize("value", ["text", np.array([True, False])])
def test_texts_and_truth_values_are_refused(value: object) -> None:
    with pytest.raises(InvalidInputs, match="output 'y': classification needs numbers"):
        classify(tensor_of(value), 1, (), is_batched=True)


def test_too_many_values_or_texts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = tensor_of(*np.zeros((4, 8), np.float32))
    monkeypatch.setattr(classification, "MAX_TEXTS", 8)
    assert classify(tensor, 2, (), is_batched=True).shape == (4, 2)
    with pytest.raises(InvalidInputs, match="of 32 values would have 12 texts; at most"):
        classify(tensor, 3, (), is_batched=True)
    monkeypatch.setattr(classification, "MAX_VALUES", 31)
    with pytest.raises(InvalidInputs, match="and 8 texts are accepted: send fewer"):
        classify(tensor, 1, (), is_batched=True)


def test_an_empty_output_has_no_classes() -> None:
    result = classify(tensor_of(np.zeros(0, np.float32)), 3, (), is_batched=True)
    assert (result.shape, texts(result)) == ((1, 0), [])
