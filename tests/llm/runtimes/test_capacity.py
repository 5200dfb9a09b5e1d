"""Number of cache blocks, computed by hand."""

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.spec import ModelSpec, from_config
from mindspore_serving.llm.runtimes.capacity import (
    SHARE_OF_MEMORY,
    DeviceMemory,
    cache_block_bytes,
    runner_limits,
)
from mindspore_serving.llm.runtimes.layout import RunnerLimits
from mindspore_serving.llm.runtimes.main_memory import MainMemory

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


def limits(memory: MainMemory | DeviceMemory, num_ranks: int = 1, **options: int) -> RunnerLimits:
    config = EngineConfig(block_size=16, **options)
    block_bytes = cache_block_bytes(config, spec(), element_size=4)
    assert block_bytes == BLOCK_BYTES
    return runner_limits(config, spec(), block_bytes, memory, num_ranks)


def fitting(free: int = 0, **options: int) -> tuple[int, int]:
    """(blocks, longest sequence) on a device with `free` bytes."""
    found = limits(DeviceMemory(free, "all of it"), **options)
    return found.num_blocks, found.max_model_len


def machine(blocks: int, available: int | None = None) -> MainMemory:
    """Memory of which the default share is `blocks`, with `available` blocks available."""
    total = int(blocks * BLOCK_BYTES / SHARE_OF_MEMORY) + 9
    return MainMemory(total, total if available is None else available * BLOCK_BYTES)


def test_kv_cache_memory_is_divided_into_blocks() -> None:
    assert fitting(kv_cache_memory=10 * BLOCK_BYTES + 1) == (10, 128)


def test_a_small_cache_lowers_the_longest_sequence() -> None:
    assert fitting(kv_cache_memory=3 * BLOCK_BYTES) == (3, 48)


def test_free_memory_is_the_default_cache_size() -> None:
    assert fitting(free=20 * BLOCK_BYTES) == (20, 128)


def test_cache_is_no_larger_than_all_sequences_can_fill() -> None:
    """3 sequences of 128 / 16 blocks."""
    assert fitting(free=10**12, max_num_seqs=3) == (24, 128)
    assert fitting(free=10**12, max_num_seqs=3, max_model_len=33) == (9, 33)


def test_cache_smaller_than_a_block_is_refused() -> None:
    with pytest.raises(StartError, match=f"{BLOCK_BYTES - 1} bytes .* takes {BLOCK_BYTES} bytes"):
        fitting(kv_cache_memory=BLOCK_BYTES - 1)
    with pytest.raises(StartError, match="raise kv_cache_memory"):
        fitting(free=0)


def test_max_model_len_beyond_positions_is_refused() -> None:
    with pytest.raises(StartError, match="max_model_len is 129, but the model has 128"):
        fitting(kv_cache_memory=2**20, max_model_len=129)


def test_the_default_is_a_share_of_the_main_memory() -> None:
    found = limits(machine(blocks=20))
    assert (found.num_blocks, found.max_model_len) == (20, 128)
    assert found.memory.kept_blocks == 20
    assert found.memory.reason == "12 % of 0 GB memory"


def test_a_longest_sequence_fits_though_the_share_is_smaller() -> None:
    """128 tokens are 8 blocks, of which 3 may stay for later prompts."""
    found = limits(machine(blocks=3))
    assert (found.num_blocks, found.max_model_len) == (8, 128)
    assert found.memory.kept_blocks == 3
    assert found.memory.reason.startswith("the longest sequence, of which later prompts keep 12 %")


def test_pinned_prompts_leave_room_for_a_longest_sequence() -> None:
    """They may take half of the cache."""
    config = EngineConfig(block_size=16, pinned_prompts=["a"])
    assert runner_limits(config, spec(), BLOCK_BYTES, machine(blocks=5)).num_blocks == 16


def test_half_of_the_available_memory_is_the_limit_on_a_full_machine() -> None:
    found = limits(machine(blocks=20, available=10))
    assert (found.num_blocks, found.max_model_len) == (5, 80)
    assert found.memory.reason == "50 % of the free memory"


def test_ranks_share_the_memory_of_the_machine() -> None:
    found = limits(machine(blocks=40), num_ranks=2)
    assert found.num_blocks == 20
    assert found.memory.block_bytes == 2 * BLOCK_BYTES  # of both


def test_kv_cache_memory_is_kept_on_a_small_machine_too() -> None:
    found = limits(machine(blocks=3), kv_cache_memory=30 * BLOCK_BYTES)
    assert (found.num_blocks, found.memory.kept_blocks) == (30, 30)
    assert found.memory.reason == "kv_cache_memory"


def test_states_leave_room_for_a_longest_sequence() -> None:
    """Slots take at most half of the cache, and a small share is enough for neither."""
    model = from_config(
        {
            "architectures": ["Lfm2ForCausalLM"],
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "layer_types": ["conv", "full_attention", "conv", "full_attention"],
            "conv_L_cache": 3,
            "vocab_size": 100,
            "max_position_embeddings": 128,
            "norm_eps": 1e-6,
        }
    )
    config = EngineConfig(block_size=16, max_num_seqs=8)
    assert model.state is not None
    block_bytes = cache_block_bytes(config, model, element_size=4)
    memory = MainMemory(10**9, 10**9)
    found = runner_limits(config, model, block_bytes, memory)
    small = MainMemory(block_bytes, 10**9)
    tight = runner_limits(config, model, block_bytes, small)
    assert tight.num_slots == found.num_slots == 4 * 8 + 1
    assert (tight.max_model_len, tight.num_blocks) == (128, 8)
