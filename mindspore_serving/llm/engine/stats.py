"""Counters of an engine, and the time at which a request starts.  Plain data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """State of an engine, and sums since its start; 0 for numbers that an engine lacks."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0  # including cached ones
    num_cached_blocks: int = 0
    num_cache_bytes: int = 0  # that blocks take, those of cached prompts included
    num_cache_bytes_limit: int = 0  # of all blocks
    num_cache_bytes_target: int = 0  # that they may take now for later prompts
    num_cache_bytes_released: int = 0  # returned to the system
    num_steps: int = 0
    num_native_steps: int = 0  # of these, by the native part of the runtime "combined"
    num_prompt_tokens: int = 0  # of the requests accepted
    num_generated_tokens: int = 0
    num_cache_queries: int = 0  # tokens looked up in the prefix cache, and prefix hits of them
    num_cache_hits: int = 0
    num_preemptions: int = 0
    num_draft_tokens: int = 0  # draft tokens verified, and how many were accepted
    num_accepted_tokens: int = 0
    num_forced_tokens: int = 0  # accepted ones that a grammar forced: they took no step
    num_expert_tokens: int = 0  # that whole experts on ranks got, each in every layer
    num_expert_tokens_peak: int = 0  # of these, of the rank that got the most of each layer
    num_disk_hits: int = 0  # tokens whose blocks were read from disk
    num_disk_misses: int = 0  # blocks that a prompt wanted and that were not there
    num_disk_errors: int = 0  # reads and writes that failed, and blocks that were damaged
    num_disk_bytes_read: int = 0
    num_disk_bytes_written: int = 0
    num_store_hits: int = 0  # the same of the store that servers share
    num_store_misses: int = 0
    num_store_errors: int = 0
    num_store_bytes_read: int = 0
    num_store_bytes_written: int = 0
    num_handoffs: int = 0  # prompts that another worker has computed for this one
    num_handoffs_failed: int = 0  # that it was asked for, and has not, or in part
    num_handoffs_local: int = 0  # that this worker, which decodes, has computed
    num_handoffs_computed: int = 0  # that this worker was asked to compute for another
    num_handoff_tokens: int = 0  # tokens whose blocks came from another worker
    num_handoff_bytes_read: int = 0
    num_handoff_bytes_written: int = 0
    num_handoff_microseconds: int = 0  # that prompts have waited for their blocks


@dataclass(frozen=True, slots=True)
class FirstStep:
    """Output that tells when the first step of a request began, by `time.monotonic`."""

    at: float
