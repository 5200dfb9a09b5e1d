"""When a generation came to what, by `time.monotonic`, and how much it read and wrote."""

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Timeline:
    """Times are 0.0 until it has come so far."""

    accepted: float = field(default_factory=time.monotonic)
    ready: float = 0.0  # to be computed: its prompt is tokens
    first_step: float = 0.0
    first_token: float = 0.0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # of the prompt, found in the prefix cache
    num_generated_tokens: int = 0  # of all answers
    num_guesses: int = 0  # of tokens, and how many were right
    num_right_guesses: int = 0
    finish_reasons: list[str] = field(default_factory=list)  # of those that have ended

    @property
    def began(self) -> float:
        """When it began to be computed; or came, if it did not."""
        return self.first_step or self.accepted

    @property
    def queue_seconds(self) -> float:
        """From when it was ready to its first step; 0.0 if it had none."""
        ready = self.ready or self.accepted
        return max(0.0, self.first_step - ready) if self.first_step else 0.0
