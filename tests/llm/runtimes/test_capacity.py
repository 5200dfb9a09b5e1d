"""Number of cache blocks, computed by hand."""

from pathlib import Path

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.spec import ModelSpec, from_config
from mindspore_serving.llm.runtimes.capacity import (
    cache_block_bytes,
    free_main_memory,
    runner_limits,
)

# 2 layers * (keys and values) * 2 heads * 8 numbers = 64 numbers per token
BLOCK_BYTES = 64 * 4 * 16


def spec() -> ModelSpec:
    return from_config(
        {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 100,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-6,
        }
    )


def fitting(free_memory: int = 0, **options: int) -> tuple[int, int]:
    """(blocks, longest sequence)"""
    config = EngineConfig(block_size=16, **options)
    block_bytes = cache_block_bytes(config, spec(), element_size=4)
    assert block_bytes == BLOCK_BYTES
    limits = runner_limits(config, spec(), block_bytes, free_memory=free_memory)
    return limits.num_blocks, limits.max_model_len


def test_kv_cache_memory_is_divided_into_blocks() -> None:
    assert fitting(kv_cache_memory=10 * BLOCK_BYTES + 1) == (10, 128)


def test_a_small_cache_lowers_the_longest_sequence() -> None:
    assert fitting(kv_cache_memory=3 * BLOCK_BYTES) == (3, 48)


def test_free_memory_is_the_default_cache_size() -> None:
    assert fitting(free_memory=20 * BLOCK_BYTES) == (20, 128)


def test_cache_is_no_larger_than_all_sequences_can_fill() -> None:
    """3 sequences of 128 / 16 blocks."""
    assert fitting(free_memory=10**12, max_num_seqs=3) == (24, 128)
    assert fitting(free_memory=10**12, max_num_seqs=3, max_model_len=33) == (9, 33)


def test_cache_smaller_than_a_block_is_refused() -> None:
    with pytest.raises(StartError, match=f"{BLOCK_BYTES - 1} bytes .* takes {BLOCK_BYTES} bytes"):
        fitting(kv_cache_memory=BLOCK_BYTES - 1)
    with pytest.raises(StartError, match="raise kv_cache_memory"):
        fitting(free_memory=0)


def test_max_model_len_beyond_positions_is_refused() -> None:
    with pytest.raises(StartError, match="max_model_len is 129, but the model has 128"):
        fitting(kv_cache_memory=2**20, max_model_len=129)


def test_a_container_with_a_limit_has_less_free_memory(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9999 kB\nMemAvailable:   1000 kB\n")
    assert free_main_memory(tmp_path) == 512_000
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("300000\n")
    (group / "memory.current").write_text("100000\n")
    assert free_main_memory(tmp_path) == 100_000
    (group / "memory.max").write_text("max\n")
    assert free_main_memory(tmp_path) == 512_000
