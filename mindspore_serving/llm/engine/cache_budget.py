"""Memory of a cache's blocks: how much they take, how much they may, and its return to the system.

Knows no clock and no other memory: the owner of the engine sets the target.
"""

from mindspore_serving.llm.engine.blocks import BlockPool
from mindspore_serving.llm.step import Runner


class CacheBudget:
    """Memory of the blocks of `runner`, which `pool` allocates; used by the engine's thread.

    `limit` is the number of bytes of all blocks, and `max_kept` of those that may stay in memory
    for later prompts.  `num_released` bytes were returned to the system.
    """

    def __init__(self, runner: Runner, pool: BlockPool) -> None:
        memory = runner.cache_memory
        self._runner, self._pool = runner, pool
        self._block_bytes = memory.block_bytes
        kept = pool.num_blocks if memory.kept_blocks is None else memory.kept_blocks
        pool.max_written = min(kept, pool.num_blocks)
        self.can_release = memory.can_release and memory.block_bytes > 0
        self._shared, self._reason = memory.shared_bytes, memory.reason
        self.limit = pool.num_blocks * memory.block_bytes
        self.max_kept = pool.max_written * memory.block_bytes
        self.num_released = 0

    def counts(self) -> dict[str, int]:
        """Return the bytes of the cache, by the fields of `EngineStats`."""
        return {
            "num_cache_bytes": self.used,
            "num_cache_bytes_limit": self.limit,
            "num_cache_bytes_target": self.target,
            "num_cache_bytes_released": self.num_released,
        }

    @property
    def used(self) -> int:
        """Number of bytes that blocks take.  May be read by any thread."""
        return self._pool.num_written * self._block_bytes

    @property
    def target(self) -> int:
        """Number of bytes that blocks may take, but for sequences that run."""
        return self._pool.max_written * self._block_bytes

    def divided_by(self, num_models: int) -> int:
        """Return `max_kept` if `num_models` of a server share the memory of its default."""
        return min(self.max_kept, self._shared // num_models) if self._shared else self.max_kept

    def set_target(self, num_bytes: int) -> None:
        """Let blocks take `num_bytes`, and more only for sequences that run."""
        self._pool.max_written = min(num_bytes // self._block_bytes, self._pool.num_blocks)

    def release(self, limit: int) -> int:
        """Return memory over the target to the system, about `limit` bytes, and count it.

        Blocks in use and pinned ones stay.
        """
        blocks = self._pool.shrink(max(1, limit // self._block_bytes))
        if blocks:
            self._runner.release_blocks(blocks)
        released = len(blocks) * self._block_bytes
        self.num_released += released
        return released

    def describe(self) -> str:
        """Describe the limit, its reason and the option that changes it, for people."""
        if not self.limit:
            return ""
        value = f"{2 * self.limit:.0e}".replace("e+0", "e").replace("e+", "e")
        limit = self.limit / 1e9
        return (
            f"KV cache up to {limit:.{1 if limit >= 0.1 else 3}f} GB ({self._reason}; change: "
            f"--llm-option kv_cache_memory={value})"
        )
