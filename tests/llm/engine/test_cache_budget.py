"""Memory of a toy's cache, of 8 blocks of 32 bytes."""

import pytest

from mindspore_serving.llm.engine.blocks import BlockPool
from mindspore_serving.llm.engine.cache_budget import CacheBudget
from mindspore_serving.llm.step import CacheMemory
from tests.llm.toy import ToyRunner

BLOCK = 32


def budget(**memory: object) -> CacheBudget:
    runner = ToyRunner(num_blocks=8)
    given = {"block_bytes": BLOCK, "can_release": True, "reason": "a toy", **memory}
    runner.cache_memory = CacheMemory(**given)  # type: ignore[arg-type]
    return CacheBudget(runner, BlockPool(8))


def test_memory_over_the_target_is_released_in_parts() -> None:
    pool = BlockPool(8)
    memory = CacheBudget(ToyRunner(num_blocks=8), pool)
    pool.free([pool.allocate() for _ in range(6)])
    assert (memory.limit, memory.used) == (8 * BLOCK, 6 * BLOCK)
    assert memory.release(1000) == 0
    memory.set_target(3 * BLOCK + 5)
    assert memory.target == 3 * BLOCK
    assert memory.release(2 * BLOCK) == 2 * BLOCK
    assert memory.release(1) == BLOCK  # at least one
    assert memory.release(1000) == 0
    assert (memory.used, memory.num_released) == (3 * BLOCK, 3 * BLOCK)


def test_kept_memory_may_be_less_than_the_cache() -> None:
    assert budget(kept_blocks=3).max_kept == 3 * BLOCK
    assert budget().max_kept == 8 * BLOCK


def test_models_share_a_default_and_no_size_of_the_operator() -> None:
    default = budget(shared_bytes=10 * BLOCK)
    assert [default.divided_by(count) for count in (1, 2, 5)] == [8 * BLOCK, 5 * BLOCK, 2 * BLOCK]
    assert budget().divided_by(5) == 8 * BLOCK


@pytest.mark.parametrize(
    ("block_bytes", "text"),
    [
        (0, ""),
        (250_000_000, "KV cache up to 2.0 GB (a toy; change: --llm-option kv_cache_memory=4e9)"),
        (250_000, "KV cache up to 0.002 GB (a toy; change: --llm-option kv_cache_memory=4e6)"),
        (2e9, "KV cache up to 16.0 GB (a toy; change: --llm-option kv_cache_memory=3e10)"),
    ],
)
def test_the_limit_is_described_with_the_option_that_sets_a_limit(
    block_bytes: int, text: str
) -> None:
    assert budget(block_bytes=int(block_bytes)).describe() == text
