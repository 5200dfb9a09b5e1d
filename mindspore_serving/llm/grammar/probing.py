"""Probing of a grammar: the time of its steps is measured before an engine follows it."""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

MAX_SECONDS = 0.05  # CPU time of one step
_NUM_PATHS, _NUM_STEPS = 2, 48


def find_slow_step(begin: Callable[[], Any], eos_ids: Sequence[int]) -> str | None:
    """Follow random paths through a grammar; return why a step is too slow, None if none is.

    `begin` returns an llguidance matcher at its start.
    """
    rng = random.Random(0)
    for _ in range(_NUM_PATHS):
        problem = _follow_path(begin(), eos_ids, rng)
        if problem:
            return problem
    return None


def _follow_path(matcher: Any, eos_ids: Sequence[int], rng: random.Random) -> str | None:
    for step in range(_NUM_STEPS):
        began = time.thread_time()
        mask = matcher.compute_bitmask()
        token_id = None if matcher.is_error() else _choose(mask, eos_ids, rng)
        if token_id is not None:
            matcher.consume_token(token_id)
        if time.thread_time() - began > MAX_SECONDS:
            return f"computing the mask after its first {step} tokens takes too long"
        if token_id is None or matcher.is_stopped():
            return None  # an error, too, ends the answer
    return None


def _choose(mask: bytes, eos_ids: Sequence[int], rng: random.Random) -> int | None:
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    bits[[token_id for token_id in eos_ids if token_id < len(bits)]] = 0
    allowed = np.flatnonzero(bits)
    return int(allowed[rng.randrange(len(allowed))]) if len(allowed) else None
