"""Trying how long the steps of a grammar take, before an engine follows it."""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

MOST_SECONDS = 0.05  # of one step, of CPU
_WAYS, _STEPS = 2, 48


def find_slow_step(begin: Callable[[], Any], eos_ids: Sequence[int]) -> str | None:
    """What is wrong on a few ways through a grammar; None if nothing is.  `begin` gives a matcher
    of llguidance at its start.
    """
    rng = random.Random(0)
    for _ in range(_WAYS):
        problem = _walk(begin(), eos_ids, rng)
        if problem:
            return problem
    return None


def _walk(matcher: Any, eos_ids: Sequence[int], rng: random.Random) -> str | None:
    for step in range(_STEPS):
        began = time.thread_time()
        mask = matcher.compute_bitmask()
        token_id = None if matcher.is_error() else _choose(mask, eos_ids, rng)
        if token_id is not None:
            matcher.consume_token(token_id)
        if time.thread_time() - began > MOST_SECONDS:
            return f"finding what may follow its first {step} tokens takes too long"
        if token_id is None or matcher.is_stopped():
            return None  # also at an error: such an answer ends by itself
    return None


def _choose(mask: bytes, eos_ids: Sequence[int], rng: random.Random) -> int | None:
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    bits[[token_id for token_id in eos_ids if token_id < len(bits)]] = 0
    allowed = np.flatnonzero(bits)
    return int(allowed[rng.randrange(len(allowed))]) if len(allowed) else None
