"""Bounds of a cache of answers: bytes, age, and the part of a tenant."""

import pytest

from mindspore_serving.core.buffers import StoredBytes
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.master.answer_cache import (
    ENTRY_SIZE,
    INSTANCE_SIZE,
    MAX_BODY,
    AnswerCache,
    cache_for,
)
from mindspore_serving.wire.v2.datatypes import BY_NAME
from mindspore_serving.wire.v2.tensors import InputTensor, TensorBody

SIZE = ENTRY_SIZE + INSTANCE_SIZE  # of an answer with one empty instance


def key(number: int, tenant: str = "") -> tuple[str, bytes]:
    return tenant, b"%d" % number


def test_an_answer_is_a_copy() -> None:
    cache, memory = AnswerCache(1 << 20, 60), bytearray(b"old")
    cache.put(key(1), [memoryview(memory)], 0)
    memory[:] = b"new"
    answer = cache.get(key(1), 1)
    assert answer is not None
    assert answer.instances == (b"old",)
    assert cache.num_bytes == SIZE + 3


def test_an_answer_expires() -> None:
    cache = AnswerCache(1 << 20, 60)
    cache.put(key(1), [b"y"], 100)
    assert cache.get(key(1), 159.9) is not None
    assert cache.get(key(1), 160) is None
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_the_least_recently_used_answer_is_evicted() -> None:
    cache = AnswerCache(4 * SIZE, 60)
    for number in range(4):
        cache.put(key(number), [b""], 0)
    assert cache.get(key(0), 1) is not None
    cache.put(key(4), [b""], 1)
    assert [number for number in range(5) if cache.get(key(number), 2)] == [0, 2, 3, 4]
    assert (cache.num_evicted, cache.num_bytes) == (1, 4 * SIZE)


def test_many_answers_stay_within_the_bytes() -> None:
    cache = AnswerCache(10_000, 60)
    for number in range(1000):
        cache.put(key(number), [b"y" * (number % 700)], 0)
        assert cache.num_bytes <= 10_000
    cached = [cache.get(key(number), 0) for number in range(1000)]
    assert sum(answer.size for answer in cached if answer) == cache.num_bytes


def test_a_large_answer_evicts_nothing() -> None:
    cache = AnswerCache(4 * SIZE, 60)
    cache.put(key(1), [b""], 0)
    cache.put(key(2), [b"y" * SIZE], 0)
    assert cache.get(key(1), 0) is not None
    assert cache.get(key(2), 0) is None


def test_an_answer_replaces_the_old_answer_of_its_key() -> None:
    cache = AnswerCache(1 << 20, 60)
    for text in (b"1", b"2"):
        cache.put(key(1), [text], 0)
    answer = cache.get(key(1), 0)
    assert answer is not None
    assert answer.instances == (b"2",)
    assert cache.num_bytes == SIZE + 1


def test_a_tenant_does_not_evict_answers_of_a_smaller_tenant() -> None:
    cache = AnswerCache(8 * SIZE, 60, is_per_tenant=True)
    cache.put(key(0, "small"), [b""], 0)
    for number in range(100):
        cache.put(key(number, "large"), [b""], 0)
    assert cache.get(key(0, "small"), 0) is not None
    assert (len(cache), cache.num_evicted) == (8, 93)


def test_keys_differ_by_codec_boundary_and_tenant() -> None:
    cache, each = AnswerCache(1, 60), AnswerCache(1, 60, is_per_tenant=True)
    body = b'{"instances":[{"x":1}]}'
    assert cache.key_of("a", "ms_json", body) == cache.key_of("b", "ms_json", bytearray(body))
    assert each.key_of("a", "ms_json", body) != each.key_of("b", "ms_json", body)
    assert cache.key_of("", "ms_json", body) != cache.key_of("", "ms_proto", body)
    assert cache.key_of("", "ms_json", body) != cache.key_of("", "ms_json", body + b" ")


def tensors(*data: "bytes | StoredBytes") -> TensorBody:
    kind = BY_NAME["UINT8"]
    inputs = [
        InputTensor(f"x{index}", kind, (1, len(each)), "raw", each)
        for index, each in enumerate(data)
    ]
    return TensorBody(inputs)


def test_keys_of_tensors_have_their_boundaries() -> None:
    cache = AnswerCache(1, 60)
    first, second = tensors(b"ab", b"c"), tensors(b"a", b"bc")
    assert cache.key_of("", "v2_raw", first) == cache.key_of("", "v2_raw", tensors(b"ab", b"c"))
    assert cache.key_of("", "v2_raw", first) != cache.key_of("", "v2_raw", second)


def test_bodies_that_are_large_or_can_change_have_no_key() -> None:
    cache = AnswerCache(1, 60)
    shared = StoredBytes(lambda start, target: None, 0, 3)
    assert cache.key_of("", "v2_raw", tensors(b"abc", shared)) is None
    assert cache.key_of("", "ms_json", b" " * MAX_BODY) is not None
    assert cache.key_of("", "ms_json", b" " * (MAX_BODY + 1)) is None


@pytest.mark.parametrize(("size", "is_cacheable"), [(0, True), (1, False)])
def test_a_cache_needs_the_operator_and_the_method(size: float, is_cacheable: bool) -> None:
    deployment = Deployment("d", "s", cache_mb=size)
    assert cache_for(deployment, is_cacheable=is_cacheable) is None
