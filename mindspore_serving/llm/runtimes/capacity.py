"""How much a runner can hold: cache blocks and longest sequence, from what the operator asked for,
what the model needs per token and what memory is free.  Knows no runtime.
"""

from dataclasses import dataclass
from pathlib import Path

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.spec import ModelSpec

SHARE_OF_FREE = 0.5  # of main memory; the rest is for activations and everything else


@dataclass(frozen=True, slots=True)
class Capacity:
    num_blocks: int
    max_model_len: int


def capacity(
    config: EngineConfig, spec: ModelSpec, *, element_size: int, free_memory: int
) -> Capacity:
    """What fits `config.kv_cache_memory`, or else `free_memory` bytes.

    Without `kv_cache_memory` no more is taken than `max_num_seqs` longest sequences need.
    `element_size`: bytes per number of the cache.  Raises StartError if a limit is beyond the
    model's, or not one block fits.
    """
    longest = config.max_model_len or spec.max_position_embeddings
    if longest > spec.max_position_embeddings:
        raise StartError(
            f"max_model_len is {longest}, but the model has {spec.max_position_embeddings} "
            "positions"
        )
    block_bytes = 2 * spec.num_layers * spec.kv_size * element_size * config.block_size
    if config.kv_cache_memory is not None:
        num_blocks = config.kv_cache_memory // block_bytes
    else:
        wanted = config.max_num_seqs * -(-longest // config.block_size)
        num_blocks = min(wanted, free_memory // block_bytes)
    if num_blocks < 1:
        memory = free_memory if config.kv_cache_memory is None else config.kv_cache_memory
        raise StartError(
            f"{memory} bytes for keys and values hold no block: one of {config.block_size} tokens "
            f"takes {block_bytes} bytes; raise kv_cache_memory or lower block_size"
        )
    held = num_blocks * config.block_size
    if held < longest:
        log.warning(
            "the cache holds %d tokens, so max_model_len is %d and not %d; kv_cache_memory "
            "raises it", held, held, longest,
        )  # fmt: skip
    return Capacity(num_blocks, min(longest, held))


def free_main_memory(root: Path = Path("/")) -> int:
    """The share of main memory that a cache may take, in bytes; a container's limit counts."""
    available = _meminfo(root / "proc/meminfo")
    group = root / "sys/fs/cgroup"
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    if limit is not None and used is not None:
        available = min(available, limit - used)
    return max(0, int(available * SHARE_OF_FREE))


def _meminfo(path: Path) -> int:
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise StartError(f"{path} has no MemAvailable; give kv_cache_memory")


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
