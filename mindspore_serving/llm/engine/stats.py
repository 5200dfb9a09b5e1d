"""The numbers of an engine, and when it begins a request.  Plain data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's state, and sums since its start; 0 for what an engine does not have or say."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0  # among them cached ones
    num_cached_blocks: int = 0
    num_steps: int = 0
    num_prompt_tokens: int = 0  # of the requests taken
    num_generated_tokens: int = 0
    num_cache_queries: int = 0  # tokens looked up in the prefix cache, and found there
    num_cache_hits: int = 0
    num_preemptions: int = 0
    num_guesses: int = 0  # tokens speculated, and how many were right
    num_right_guesses: int = 0
    num_disk_hits: int = 0  # tokens whose blocks were read from disk
    num_disk_bytes_read: int = 0
    num_disk_bytes_written: int = 0


@dataclass(frozen=True, slots=True)
class FirstStep:
    """An output: the first step of a request began, by `time.monotonic`."""

    at: float
