"""Memory that is lent comes back when the last view of it is gone."""

import numpy as np

from mindspore_serving.core.lending import lend


def test_memory_is_returned_once_when_its_last_view_is_dropped():
    returned = []
    memory = memoryview(bytearray(range(64)))
    lent = lend(memory[32:], lambda: returned.append("it"))
    array = np.frombuffer(lent[:16], np.float32)
    rows = array.reshape(2, 2)[1:]
    del lent, array
    assert returned == []
    del rows
    assert returned == ["it"]


def test_writes_to_a_loan_are_in_the_memory():
    memory = bytearray(8)
    np.frombuffer(lend(memoryview(memory), lambda: None), np.uint8)[2:4] = 7
    assert memory == bytes([0, 0, 7, 7, 0, 0, 0, 0])


def test_a_loan_of_read_only_memory_is_read_only():
    assert lend(memoryview(b"abc"), lambda: None).readonly
