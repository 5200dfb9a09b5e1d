from hashlib import blake2b

import pytest

from mindspore_serving.llm.engine.blocks import BlockPool, hash_block, hash_root


def filled(pool, *digests):
    blocks = [pool.allocate() for _ in digests]
    for block, digest in zip(blocks, digests, strict=True):
        pool.register(block, digest)
    return blocks


def test_blocks_are_handed_out_once_and_come_back():
    pool = BlockPool(3)
    taken = [pool.allocate() for _ in range(3)]
    assert sorted(taken) == [0, 1, 2]
    assert pool.num_free == 0
    pool.free(taken)
    assert pool.num_free == 3
    assert pool.users == [0, 0, 0]


def test_a_shared_block_is_free_when_its_last_user_leaves():
    pool = BlockPool(2)
    block = pool.allocate()
    pool.share([block])
    pool.free([block])
    assert pool.num_free == 1
    pool.free([block])
    assert pool.num_free == 2


def test_a_free_block_is_found_by_its_contents():
    pool = BlockPool(4)
    blocks = filled(pool, b"a", b"b")
    pool.free(blocks)
    assert pool.find([b"a", b"b", b"c"]) == blocks
    assert pool.num_unused(blocks) == 2
    pool.share(blocks)
    assert pool.num_free == 2
    assert pool.num_unused(blocks) == 0


def test_only_an_unbroken_beginning_is_found():
    pool = BlockPool(4)
    first, _, third = filled(pool, b"a", b"b", b"c")
    assert pool.find([b"a", b"x", b"c"]) == [first]
    assert pool.find([b"x", b"b"]) == []
    assert pool.find([b"c"]) == [third]


def test_empty_blocks_are_allocated_before_cached_blocks():
    pool = BlockPool(3)
    (kept,) = filled(pool, b"a")
    pool.free([kept])
    assert kept not in [pool.allocate(), pool.allocate()]
    assert pool.find([b"a"]) == [kept]
    assert pool.allocate() == kept
    assert pool.find([b"a"]) == []


def test_the_cached_block_that_is_free_longest_is_evicted_first():
    pool = BlockPool(3)
    old, newer, newest = filled(pool, b"old", b"newer", b"newest")
    for block in (old, newer, newest):
        pool.free([block])
    pool.share([old])  # used once more: now the one that is free for the shortest time
    pool.free([old])
    assert [pool.allocate() for _ in range(3)] == [newer, newest, old]


def test_the_end_of_a_text_is_evicted_before_its_beginning():
    pool = BlockPool(3)
    blocks = filled(pool, b"1", b"12", b"123")
    pool.free(blocks)
    pool.allocate()
    assert pool.find([b"1", b"12", b"123"]) == blocks[:2]


def test_the_same_text_computed_twice_is_cached_once():
    pool = BlockPool(2)
    first, second = filled(pool, b"a", b"a")
    assert pool.num_cached == 1
    pool.free([first, second])
    assert pool.find([b"a"]) == [first]
    assert pool.allocate() == second


def test_a_hash_covers_everything_before_the_block():
    # Independent of array and of our helpers: little-endian 32-bit tokens behind the root.
    root = blake2b((0).to_bytes(8, "little") + b"tenant", digest_size=16).digest()
    first = blake2b(root + b"\1\0\0\0\2\0\0\0", digest_size=16).digest()
    second = blake2b(first + b"\3\0\0\0\4\0\0\0", digest_size=16).digest()
    assert hash_block(hash_block(hash_root("tenant", 0), [1, 2]), [3, 4]) == second


@pytest.mark.parametrize(("salt", "adapter"), [("b", 0), ("a", 1), ("", 0)])
def test_another_salt_or_adapter_never_hits(salt, adapter):
    assert hash_root(salt, adapter) != hash_root("a", 0)


def test_beyond_its_limit_a_pool_evicts_before_memory_is_taken():
    pool = BlockPool(4)
    pool.max_written = 2
    pool.free(filled(pool, b"a", b"b"))
    assert pool.allocate() in (0, 1)
    assert pool.num_written == 2
    assert pool.find([b"a"]) != []  # the end of a text goes first


def test_a_block_in_use_takes_memory_beyond_the_limit():
    pool = BlockPool(4)
    pool.max_written = 1
    assert sorted(pool.allocate() for _ in range(4)) == [0, 1, 2, 3]
    assert pool.num_written == 4


def test_a_pool_shrinks_by_empty_blocks_before_cached_blocks():
    pool = BlockPool(6)
    old, new = filled(pool, b"old"), filled(pool, b"new")
    used, empty = pool.allocate(), pool.allocate()
    pool.free(old)
    pool.free(new)
    pool.free([empty])
    pool.max_written = 2
    assert pool.shrink(1) == [empty]
    assert pool.shrink(9) == old
    assert (pool.find([b"new"]), pool.users[used]) == (new, 1)
    assert pool.shrink(9) == []
    assert pool.num_written == 2
    pool.max_written = 0
    assert pool.shrink(9) == new
    assert pool.shrink(9) == []
    assert (pool.num_written, pool.num_free, pool.num_cached) == (1, 5, 0)


def test_evicted_blocks_are_reported_when_the_cache_shrinks():
    pool = BlockPool(2)
    (block,) = filled(pool, b"a")
    pool.free([block])
    evicted = []
    pool.on_evict = lambda *block_and_digest: evicted.append(block_and_digest)
    pool.max_written = 0
    pool.shrink(1)
    assert evicted == [(block, b"a")]
