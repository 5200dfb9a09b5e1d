"""Shared memory that is taken before what it will hold has come: put without a copy, and free again
when neither who took it nor who got it has it."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspore_serving.ipc import arena as arenas
from mindspore_serving.ipc.arena import INLINE_LIMIT, Arena, ArenaView
from mindspore_serving.ipc.messages import Slice

KIB = 1024
Ends = tuple[Arena, ArenaView, int]


def opened() -> Ends:
    """Both ends of an arena, and its descriptor."""
    fd = arenas.create()
    return Arena(fd), ArenaView(fd), fd


def closed(ends: Ends) -> None:
    ends[1].close()
    ends[0].close()
    os.close(ends[2])


@pytest.fixture
def ends() -> Iterator[Ends]:
    found = opened()
    yield found
    closed(found)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    """An arena of 1 MiB, of which half may be taken."""
    monkeypatch.setattr(arenas, "ARENA_SIZE", 1024 * KIB)
    monkeypatch.setattr(arenas, "MAX_TAKEN", 512 * KIB)
    found = opened()
    yield found
    closed(found)


def taken(arena: Arena, size: int) -> memoryview:
    found = arena.take(size)
    assert found is not None
    return found


def in_use(arena: Arena) -> int:
    arena.trim()
    return len(arena._size_at)


def test_data_in_taken_memory_is_put_without_a_copy(ends: Ends) -> None:
    arena, view, _ = ends
    memory = taken(arena, 200_000)
    memory[:] = bytes(range(250)) * 800
    payload = arena.put(memory[1000:150_000])
    assert payload == Slice(1000, 149_000)
    assert view.get(payload) == (bytes(range(250)) * 800)[1000:150_000]
    memory[1000] = 7
    assert view.get(payload)[0] == 7
    assert len(arena._size_at) == 1


def test_small_parts_of_taken_memory_travel_inline(ends: Ends) -> None:
    memory = taken(ends[0], 200_000)
    part = memory[: INLINE_LIMIT - 1]
    assert ends[0].put(part) is part


def test_taken_memory_is_free_when_neither_end_uses_that_memory(ends: Ends) -> None:
    arena = ends[0]
    memory = taken(arena, 200_000)
    payloads = [arena.put(memory[start:]) for start in (0, 0, 64)]
    del memory
    for payload in payloads:
        assert in_use(arena) == 1
        assert isinstance(payload, Slice)
        arena.free(payload.offset)
    assert in_use(arena) == 0
    with pytest.raises(KeyError):
        arena.free(0)


def test_taken_memory_has_pages_only_where_written_until_freed(ends: Ends) -> None:
    arena, _, fd = ends
    memory = taken(arena, 64 << 20)
    assert os.fstat(fd).st_blocks == 0
    memory[: 1 << 20] = bytes(1 << 20)
    assert os.fstat(fd).st_blocks * 512 == 1 << 20
    del memory
    assert in_use(arena) == 0
    assert os.fstat(fd).st_blocks == 0


def test_half_of_the_arena_cannot_be_taken_and_stays_for_put(small: Ends) -> None:
    arena = small[0]
    memory = [taken(arena, 200 * KIB), taken(arena, 250 * KIB)]
    assert arena.take(1) is None
    assert isinstance(arena.put(bytes(512 * KIB)), Slice)
    memory.clear()
    assert arena.take(512 * KIB) is not None


def test_taken_memory_outlives_the_arena() -> None:
    arena, view, fd = found = opened()
    memory = taken(arena, 100_000)
    arena.put(memory)
    closed(found)
    memory[-1] = 9
    assert memory[-1] == 9


def test_small_free_blocks_merge_to_a_large_block_and_split_again(small: Ends) -> None:
    arena, view, _ = small
    for size in (64, 512, 100, 1024, 200) * 2:
        data = os.urandom(size * KIB)
        found = []
        while isinstance(payload := arena.put(data), Slice):
            found.append(payload.offset)
            assert view.get(payload) == data
        assert len(found) == 1024 // (1 << (size - 1).bit_length())
        for offset in found:
            arena.free(offset)


def test_free_blocks_merge_around_a_block_in_use(small: Ends) -> None:
    arena, view, _ = small
    mark = os.urandom(64 * KIB)
    kept = [arena.put(mark) for _ in range(16)].pop(8)
    for offset in [offset for offset in arena._size_at if offset != kept.offset]:
        arena.free(offset)
    assert isinstance(arena.put(bytes(512 * KIB)), Slice)
    assert isinstance(arena.put(bytes(256 * KIB)), Slice)
    assert view.get(kept) == mark


@settings(deadline=None)
@given(st.lists(st.integers(-8, 12), min_size=1, max_size=60))
def test_whatever_is_taken_put_and_freed_no_two_overlap(steps: list[int]) -> None:
    """A positive step puts that many times 40 KB, twice of three in memory that was taken for it; a
    negative one frees one of those in use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arenas, "ARENA_SIZE", 2048 * KIB)
        patch.setattr(arenas, "MAX_TAKEN", 1024 * KIB)
        arena, view, _ = found = opened()
        sent: list[tuple[Slice, bytes]] = []
        for number, step in enumerate(steps):
            if step > 0:
                mark = bytes([number % 251]) * (step * 40_000)
                memory = arena.take(len(mark)) if number % 3 else None
                if memory is not None:
                    memory[:] = mark
                payload = arena.put(mark if memory is None else memory)
                if isinstance(payload, Slice):
                    sent.append((payload, mark))
            elif sent:
                arena.free(sent.pop(step % len(sent))[0].offset)
        memory = None
        ordered = sorted((one.offset, one.offset + one.length) for one, _ in sent)
        assert all(end <= begin for (_, end), (begin, _) in zip(ordered, ordered[1:], strict=False))
        assert all(view.get(payload) == mark for payload, mark in sent)
        assert in_use(arena) == len(sent)
        closed(found)
