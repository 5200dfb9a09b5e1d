"""Shared memory: what is written is read, space is reused, and nothing overlaps."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspore_serving.core import buffers
from mindspore_serving.ipc import arena as arenas
from mindspore_serving.ipc.arena import (
    ARENA_SIZE,
    INLINE_LIMIT,
    TRIM_SECONDS,
    Arena,
    ArenaView,
    NoArena,
)
from mindspore_serving.ipc.messages import Slice

LARGE = INLINE_LIMIT + 1


@pytest.fixture
def pair():
    """Both ends of one arena."""
    fd = arenas.create()
    arena, view = Arena(fd), ArenaView(fd)
    os.close(fd)
    yield arena, view
    view.close()
    arena.close()


def test_the_receiver_reads_the_data_that_was_put(pair):
    arena, view = pair
    data = bytes(range(256)) * 200
    payload = arena.put(data)
    assert payload == Slice(0, len(data))
    assert view.get(payload) == data


def test_small_data_travels_inline(pair):
    arena, view = pair
    data = bytes(INLINE_LIMIT - 1)
    assert arena.put(data) is data
    assert view.get(data) is data
    assert len(arena._size_at) == 0


def test_the_limit_itself_goes_through_shared_memory(pair):
    assert isinstance(pair[0].put(bytes(INLINE_LIMIT)), Slice)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_like_object_can_be_put(pair, kind):
    arena, view = pair
    assert view.get(arena.put(kind(b"z" * LARGE))) == b"z" * LARGE


def test_pieces_are_contiguous_in_the_arena(pair):
    arena, view = pair
    body = buffers.join([b"head", memoryview(bytes(LARGE)), bytearray(b"end")])
    assert view.get(arena.put(body)) == b"head" + bytes(LARGE) + b"end"


def test_pieces_travel_joined_without_shared_memory():
    assert NoArena().put(buffers.join([b"head", bytes(LARGE)])) == b"head" + bytes(LARGE)


def test_small_pieces_are_joined_at_once():
    assert buffers.join([b"head", b"end"]) == b"headend"


def test_space_is_given_out_by_powers_of_two_of_at_least_64_kib(pair):
    arena, _ = pair
    kib = 1024
    sizes = [LARGE, 64 * kib, 64 * kib + 1, 200 * kib]
    assert [arena.put(bytes(size)).offset // kib for size in sizes] == [0, 64, 128, 256]


def test_the_block_freed_last_is_reused_first(pair):
    arena, _ = pair
    first, second = arena.put(bytes(LARGE)), arena.put(bytes(LARGE))
    arena.free(first.offset)
    arena.free(second.offset)
    assert arena.put(bytes(LARGE)).offset == second.offset
    assert arena.put(bytes(LARGE)).offset == first.offset


def test_freed_space_is_not_used_for_another_size(pair):
    arena, _ = pair
    small = arena.put(bytes(LARGE))
    arena.free(small.offset)
    assert arena.put(bytes(100 * 1024)).offset != small.offset


def test_blocks_in_use_are_counted(pair):
    arena, _ = pair
    payloads = [arena.put(bytes(LARGE)) for _ in range(3)]
    assert len(arena._size_at) == 3
    arena.free(payloads[1].offset)
    assert len(arena._size_at) == 2


def test_freeing_twice_is_an_error(pair):
    arena, _ = pair
    payload = arena.put(bytes(LARGE))
    arena.free(payload.offset)
    with pytest.raises(KeyError):
        arena.free(payload.offset)


def test_a_full_arena_lets_data_travel_inline(monkeypatch):
    monkeypatch.setattr(arenas, "ARENA_SIZE", 128 * 1024)
    fd = arenas.create()
    arena = Arena(fd)
    os.close(fd)
    data = b"a" * LARGE
    first, second = arena.put(data), arena.put(data)
    assert arena.put(data) is data
    arena.free(first.offset)
    assert arena.put(data) == Slice(first.offset, LARGE)
    assert second.offset != first.offset
    arena.close()


def test_memory_is_taken_only_when_written():
    fd = arenas.create()
    assert os.fstat(fd).st_size == ARENA_SIZE
    assert os.fstat(fd).st_blocks == 0
    os.close(fd)


# --- giving pages back --------------------------------------------------------------------------


@pytest.fixture
def held():
    """An arena, and how many bytes of memory it has."""
    fd = arenas.create()
    arena = Arena(fd)
    yield arena, lambda: os.fstat(fd).st_blocks * 512
    arena.close()
    os.close(fd)


def test_pages_that_are_not_used_again_are_given_back(held):
    arena, num_held = held
    offsets = [arena.put(bytes(size)).offset for size in (40_000, 1 << 20, 1 << 20)]
    for offset in offsets:
        arena.free(offset)
    arena.trim()
    assert num_held() >= 2 << 20  # it may be used again
    arena.trim()
    assert num_held() == 0


def test_pages_in_use_are_kept(held):
    arena, num_held = held
    data = os.urandom(1 << 20)
    kept, freed = arena.put(data), arena.put(data)
    arena.free(freed.offset)
    for _ in range(3):
        arena.trim()
    assert num_held() == 1 << 20
    arena.free(kept.offset)
    assert arena.put(data) == kept
    for _ in range(3):
        arena.trim()
    assert num_held() == 1 << 20


def test_many_pages_are_given_back_some_at_a_time(held):
    arena, num_held = held
    arena.free(arena.put(bytes(64 << 20)).offset)
    assert arena.trim() == TRIM_SECONDS
    left = []
    while (pause := arena.trim()) < TRIM_SECONDS:
        assert pause <= 0.2
        left.append(num_held() >> 20)
    assert left == sorted(left, reverse=True)
    assert 0 < left[0] < 64
    assert num_held() == 0


def test_blocks_freed_during_a_trim_stay_warm_until_the_trim_after_next(held):
    arena, num_held = held
    many, one = arena.put(bytes(64 << 20)), arena.put(bytes(1 << 20))
    arena.free(many.offset)
    arena.trim()
    arena.trim()  # half of them
    arena.free(one.offset)
    arena.trim()
    assert num_held() == 1 << 20
    arena.trim()
    assert num_held() == 0


def test_space_whose_pages_were_given_back_holds_data_again(pair):
    arena, view = pair
    arena.free(arena.put(bytes(LARGE)).offset)
    arena.trim()
    arena.trim()
    assert view.get(arena.put(b"x" * LARGE)) == b"x" * LARGE


@pytest.mark.parametrize(
    "payload", [Slice(-1, 10), Slice(0, -1), Slice(ARENA_SIZE - 5, 6), Slice(1 << 40, 1)], ids=str
)
def test_a_slice_outside_the_arena_is_refused(pair, payload):
    with pytest.raises(ValueError, match="lies outside the arena"):
        pair[1].get(payload)


def test_the_last_byte_of_the_arena_can_be_read(pair):
    assert bytes(pair[1].get(Slice(ARENA_SIZE - 1, 1))) == b"\0"


def test_the_receiver_cannot_write(pair):
    arena, view = pair
    assert view.get(arena.put(bytes(LARGE))).readonly


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(st.integers(INLINE_LIMIT, 400_000), st.integers(-8, -1)), min_size=1, max_size=30
    )
)
def test_whatever_is_put_and_freed_no_two_slices_overlap(steps):
    """A positive step puts that many bytes, a negative one frees one of the slices in use."""
    fd = arenas.create()
    arena, view = Arena(fd), ArenaView(fd)
    os.close(fd)
    in_use = []
    for number, step in enumerate(steps):
        if step > 0:
            mark = bytes([number % 251]) * step
            in_use.append((arena.put(mark), mark))
        elif in_use:
            arena.free(in_use.pop(step % len(in_use))[0].offset)
    ordered = sorted((payload.offset, payload.offset + payload.length) for payload, _ in in_use)
    assert all(end <= start for (_, end), (start, _) in zip(ordered, ordered[1:], strict=False))
    assert all(view.get(payload) == mark for payload, mark in in_use)
    assert len(arena._size_at) == len(in_use)
    view.close()
    arena.close()


def test_without_an_arena_everything_travels_inline():
    none, data = NoArena(), bytes(LARGE)
    assert none.put(data) is data
    assert none.get(data) is data
    none.close()


def test_without_an_arena_slices_are_refused():
    with pytest.raises(ValueError, match="without shared memory"):
        NoArena().get(Slice(0, 10))
    with pytest.raises(ValueError, match="without shared memory"):
        NoArena().free(0)
