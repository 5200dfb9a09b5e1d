"""Conversations that are too long, without their oldest turns.  Pure: knows no tokens."""

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, TypeAlias

Messages: TypeAlias = list[dict[str, Any]]


def shortened(messages: Messages, fits: Callable[[Messages], bool]) -> Messages:
    """The most of `messages` that `fits`: whole turns are left out, the oldest first.

    Messages of the system stay, and the last turn, even if it does not fit by itself.  A turn
    begins with a message of the user, so results of tools stay with their calls.
    """
    turns = [at for at, one in enumerate(messages) if one.get("role") == "user"]
    starts = [0, *turns[1:]]

    def behind(start: int) -> Messages:
        kept = [one for one in messages[:start] if one.get("role") in ("system", "developer")]
        return [*kept, *messages[start:]]

    place = bisect_left(starts, True, hi=len(starts) - 1, key=lambda start: fits(behind(start)))
    return behind(starts[place])
