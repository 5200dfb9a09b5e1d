"""Checks at opening, and the number of cache blocks and tokens that a runner can hold.

It depends on options, model and free memory.  Knows no runtime.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path

from mindspore_serving import log
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes.layout import RunnerLimits
from mindspore_serving.llm.step import Logits, RunnerLost

SHARE_OF_FREE = 0.5  # share of free main memory; the rest is for activations and everything else
SHARE_OF_SLOTS = 0.5  # largest share of the cache's memory for recurrent states
SLOTS_PER_SEQUENCE = 4  # a step reads one and writes one; the others keep snapshots
MIN_SLOTS = 3  # for one sequence and an embedding request


def cache_block_bytes(config: EngineConfig, spec: ModelSpec, element_size: int) -> int:
    """Return the bytes of one block's keys and values in all layers.

    `element_size` is bytes per number.
    """
    numbers = sum(prod(spec.heads[layer]) for layer in spec.attention_layers)
    return 2 * numbers * element_size * config.block_size


def longest_sequence(config: EngineConfig, spec: ModelSpec) -> int:
    """Return the maximum tokens of a sequence.  Raises StartError if the model has fewer."""
    longest = config.max_model_len or spec.max_position_embeddings
    if longest > spec.max_position_embeddings:
        raise StartError(
            f"max_model_len is {longest}, but the model has {spec.max_position_embeddings} "
            "positions"
        )
    return longest


def runner_limits(
    config: EngineConfig, spec: ModelSpec, block_bytes: int, *, free_memory: int | None = None
) -> RunnerLimits:
    """Return the limits that fit `config.kv_cache_memory`, or else `free_memory` bytes.

    `free_memory` is `free_main_memory()` by default.  Without `kv_cache_memory` the cache is no
    larger than `max_num_seqs` longest sequences need.

    Raises StartError if a limit is beyond the model's, or not one block fits.
    """
    longest = longest_sequence(config, spec)
    max_blocks = config.max_num_seqs * -(-longest // config.block_size)
    slot_bytes = spec.state.slot_bytes if spec.state else 0
    max_slots = SLOTS_PER_SEQUENCE * config.max_num_seqs + 1
    if config.kv_cache_memory is not None:
        memory = config.kv_cache_memory
    else:
        needed = max_blocks * block_bytes + max_slots * slot_bytes
        memory = min(needed, free_main_memory() if free_memory is None else free_memory)
    num_slots = _num_slots(config, memory, slot_bytes, max_slots) if slot_bytes else 0
    memory -= num_slots * slot_bytes
    num_blocks = memory // block_bytes if block_bytes else max_blocks
    if num_blocks < 1:
        raise StartError(
            f"{memory} bytes for keys and values hold no block: one of {config.block_size} tokens "
            f"takes {block_bytes} bytes; raise kv_cache_memory"
        )
    capacity = num_blocks * config.block_size
    if capacity < longest:
        log.warning(
            "the cache holds %d tokens, so max_model_len is %d and not %d; kv_cache_memory "
            "raises it", capacity, capacity, longest,
        )  # fmt: skip
    limits = RunnerLimits(config.block_size, num_blocks, spec.vocab_size, min(longest, capacity))
    return replace(limits, num_slots=num_slots)


def _num_slots(config: EngineConfig, memory: int, slot_bytes: int, max_slots: int) -> int:
    """Return the number of state slots in a share of `memory`.

    Raises StartError if there are not enough for one sequence.
    """
    if config.num_speculative_tokens:
        raise StartError(
            f"num_speculative_tokens is {config.num_speculative_tokens}, but the model has layers "
            "with a state, which a rejected draft token would corrupt; leave it out"
        )
    count = min(max_slots, int(memory * SHARE_OF_SLOTS) // slot_bytes)
    if count < MIN_SLOTS:
        raise StartError(
            f"{memory} bytes hold no states: {MIN_SLOTS} of {slot_bytes} bytes have to fit "
            f"{SHARE_OF_SLOTS} of them; raise kv_cache_memory"
        )
    if (count - 1) // 2 < config.max_num_seqs:
        log.warning(
            "there is memory for %d states, so %d sequences run and not max_num_seqs=%d; "
            "kv_cache_memory raises it", count, (count - 1) // 2, config.max_num_seqs,
        )  # fmt: skip
    return count


def free_main_memory(root: Path = Path("/")) -> int:
    """Return the bytes of main memory that a cache may take; a container's limit counts."""
    available = _meminfo(root / "proc/meminfo")
    limit, used = cgroup_memory(root)
    if limit is not None and used is not None:
        available = min(available, limit - used)
    return max(0, int(available * SHARE_OF_FREE))


def cgroup_memory(root: Path = Path("/")) -> tuple[int | None, int | None]:
    """Return a container's memory limit and its use in bytes; None if unlimited or unknown."""
    group = root / "sys/fs/cgroup"
    return _number(group / "memory.max"), _number(group / "memory.current")


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


@contextmanager
def first_step() -> Iterator[None]:
    """Raise StartError for a ServingError of the first step, which loads the weights.

    RunnerLost is raised unchanged.
    """
    try:
        yield
    except (StartError, RunnerLost):
        raise
    except ServingError as error:
        raise StartError(f"the weights do not fit config.json, or memory: {error}") from error


def check_logits(logits: Logits, spec: ModelSpec) -> None:
    """Raise StartError unless there is one logit for each token of the vocabulary."""
    if logits.shape[1] != spec.vocab_size:
        raise StartError(
            f"the output matrix has {logits.shape[1]} rows, but config.json has vocab_size "
            f"{spec.vocab_size}"
        )
