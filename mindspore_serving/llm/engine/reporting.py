"""What an engine says of itself: in words, and in numbers."""

from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.engine.scheduler import Scheduler
from mindspore_serving.llm.engine.speculation import Speculation
from mindspore_serving.llm.engine.stats import EngineStats
from mindspore_serving.llm.step import Runner


def describe(runner: Runner, config: EngineConfig, max_model_len: int, stored: str) -> str:
    """The options, what the cache can hold, how weights are that are `stored` so."""
    capacity = runner.num_blocks * runner.block_size
    return (
        f"weights {config.quantization or stored}; cache of {capacity:,} tokens "
        f"({runner.num_blocks:,} blocks of {runner.block_size}), "
        f"{capacity / max_model_len:.1f} sequences of {max_model_len:,}; at most "
        f"{config.max_num_seqs} sequences and {config.max_num_batched_tokens} tokens in a step"
    )


def stats_of(
    scheduler: Scheduler,
    speculation: Speculation,
    counts: tuple[int, int, int],
) -> EngineStats:
    """`counts` are steps, tokens of prompts, and tokens generated."""
    num_steps, num_prompt_tokens, num_generated_tokens = counts
    cache = scheduler.cache
    num_read, num_written = cache.disk.num_bytes
    return EngineStats(
        num_running=len(scheduler.running),
        num_waiting=len(scheduler.waiting),
        num_blocks=cache.pool.num_blocks,
        num_free_blocks=cache.pool.num_free,
        num_cached_blocks=cache.pool.num_cached,
        num_steps=num_steps,
        num_prompt_tokens=num_prompt_tokens,
        num_generated_tokens=num_generated_tokens,
        num_cache_queries=cache.num_queries,
        num_cache_hits=cache.num_hits,
        num_preemptions=scheduler.num_preemptions,
        num_guesses=speculation.num_guesses,
        num_right_guesses=speculation.num_right,
        num_disk_hits=cache.disk.num_tokens,
        num_disk_bytes_read=num_read,
        num_disk_bytes_written=num_written,
    )
