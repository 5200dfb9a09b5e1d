"""The numbers of an engine, and when it begins a request.  Plain data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's state, and sums since its start."""

    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int  # among them cached ones
    num_cached_blocks: int
    num_steps: int
    num_prompt_tokens: int  # of the requests taken
    num_generated_tokens: int
    num_cache_queries: int  # tokens looked up in the prefix cache, and found there
    num_cache_hits: int
    num_preemptions: int
    num_guesses: int  # tokens speculated, and how many were right
    num_right_guesses: int
    num_disk_hits: int = 0  # tokens whose blocks were read from disk
    num_disk_bytes_read: int = 0
    num_disk_bytes_written: int = 0


@dataclass(frozen=True, slots=True)
class FirstStep:
    """An output: the first step of a request began, by `time.monotonic`."""

    at: float
