"""Checks at opening, and the number of cache blocks and tokens that a runner can hold.

It depends on options, model and free memory.  Knows no runtime.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from mindspore_serving import log
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes.layout import RunnerLimits
from mindspore_serving.llm.runtimes.main_memory import MainMemory
from mindspore_serving.llm.step import CacheMemory, Logits, RunnerLost

SHARE_OF_MEMORY = 0.12  # share of the main memory, without kv_cache_memory
SHARE_OF_FREE = 0.5  # share of free main memory; the rest is for activations and everything else
MAX_DEFAULT_CACHE = 32 * 2**30  # bytes of main memory, without kv_cache_memory
SHARE_OF_SLOTS = 0.5  # largest share of the cache's memory for recurrent states
SLOTS_PER_STEP = 2  # a step reads one and writes one
SLOTS_PER_SEQUENCE = 4  # with those that keep snapshots
MIN_SLOTS = 3  # for one sequence and an embedding request


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of an accelerator's memory that a cache may take; `reason` says how many those are."""

    free: int
    reason: str


def cache_block_bytes(
    config: EngineConfig, spec: ModelSpec, element_size: int, *, num_latent: int = 0
) -> int:
    """Return the bytes of one block's keys and values in all layers.

    `element_size` is bytes per number.  With `num_latent`, latent attention has as many latent
    vectors and one rotated key of a token in the cache, else the keys and values of every head.
    """
    numbers = 2 * sum(prod(spec.heads[layer]) for layer in spec.attention_layers)
    if num_latent and spec.latent:
        width = num_latent * spec.latent.kv_rank + spec.latent.rotated
        numbers = len(spec.attention_layers) * width
    return numbers * element_size * config.block_size


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
    config: EngineConfig,
    spec: ModelSpec,
    block_bytes: int,
    memory: MainMemory | DeviceMemory,
    num_ranks: int = 1,
) -> RunnerLimits:
    """Return the limits of one of `num_ranks` ranks, by `config.kv_cache_memory` or else `memory`.

    Without `kv_cache_memory` the cache is no larger than `max_num_seqs` longest sequences need, nor
    than half of the available main memory.  Of main memory it takes at most SHARE_OF_MEMORY, unless
    one sequence needs more; then what exceeds the share is not kept for later prompts.

    Raises StartError if a limit is beyond the model's, or not one block fits.
    """
    longest = longest_sequence(config, spec)
    budget = _budget(config, _needs(config, spec, block_bytes, longest), memory, num_ranks)
    size, slot_bytes = budget.size, spec.state.slot_bytes if spec.state else 0
    num_slots = 0 if spec.state is None else _num_slots(config, size, slot_bytes)
    size -= num_slots * slot_bytes
    max_blocks = config.max_num_seqs * -(-longest // config.block_size)
    num_blocks = size // block_bytes if block_bytes else max_blocks
    if num_blocks < 1:
        raise StartError(
            f"{size} bytes for keys and values hold no block: one of {config.block_size} tokens "
            f"takes {block_bytes} bytes; raise kv_cache_memory"
        )
    capacity = num_blocks * config.block_size
    if capacity < longest:
        log.warning(
            "the cache holds %d tokens, so max_model_len is %d and not %d; kv_cache_memory "
            "raises it", capacity, capacity, longest,
        )  # fmt: skip
    kept = min(num_blocks, budget.kept // block_bytes) if block_bytes else None
    return RunnerLimits(
        config.block_size, num_blocks, spec.vocab_size, min(longest, capacity),
        num_slots=num_slots,
        memory=CacheMemory(
            block_bytes * num_ranks, kept, budget.shared * num_ranks, reason=budget.reason
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Needs:
    """Bytes that the longest sequence needs, with the states of all; and what all of them need."""

    sequence: int
    total: int


def _needs(config: EngineConfig, spec: ModelSpec, block_bytes: int, longest: int) -> _Needs:
    slot_bytes = spec.state.slot_bytes if spec.state else 0
    sequence_bytes = -(-longest // config.block_size) * block_bytes
    running = slot_bytes * (SLOTS_PER_STEP * config.max_num_seqs + 1)
    slots = slot_bytes * (SLOTS_PER_SEQUENCE * config.max_num_seqs + 1)
    num_sequences = 2 if config.pinned_prompts else 1  # they take at most half
    first = max(num_sequences * sequence_bytes + slots, int(running / SHARE_OF_SLOTS))
    return _Needs(first, config.max_num_seqs * sequence_bytes + slots)


@dataclass(frozen=True, slots=True)
class _Budget:
    """Bytes of a rank's cache, how many of them are kept for later prompts, and the reason.

    `shared` bytes are what the models of a server may keep together; 0 if they do not share.
    """

    size: int
    kept: int
    reason: str
    shared: int = 0


def _budget(
    config: EngineConfig, needs: _Needs, memory: MainMemory | DeviceMemory, num_ranks: int
) -> _Budget:
    if config.kv_cache_memory is not None:
        return _Budget(config.kv_cache_memory, config.kv_cache_memory, "kv_cache_memory")
    all_sequences = f"{config.max_num_seqs} longest sequences"
    if isinstance(memory, DeviceMemory):
        size = min(needs.total, memory.free // num_ranks)
        reason = all_sequences if size == needs.total else memory.reason
        return _Budget(size, size, reason)
    free = int(memory.available * SHARE_OF_FREE)
    share = min(int(memory.total * SHARE_OF_MEMORY), MAX_DEFAULT_CACHE)
    kept = f"{share / memory.total:.0%} of {memory.total / 1e9:.0f} GB memory".replace("%", " %")
    free, share = free // num_ranks, share // num_ranks
    size = min(needs.total, free, max(share, needs.sequence))
    if size == needs.total:
        reason = all_sequences
    elif size == free:
        reason = f"{SHARE_OF_FREE:.0%} of the free memory".replace("%", " %")
    elif size == share:
        reason = kept
    else:
        reason = f"the longest sequence, of which later prompts keep {kept}"
    return _Budget(size, min(share, size), reason, share)


def _num_slots(config: EngineConfig, memory: int, slot_bytes: int) -> int:
    """Return the number of state slots in a share of `memory`; those of a stage may have 0 bytes.

    Raises StartError if there are not enough for one sequence.
    """
    max_slots = SLOTS_PER_SEQUENCE * config.max_num_seqs + 1
    if not slot_bytes:
        return max_slots
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
    if logits.shape[1] != (spec.num_logits or spec.vocab_size):
        raise StartError(
            f"the output matrix has {logits.shape[1]} rows, but config.json has vocab_size "
            f"{spec.vocab_size}"
        )
