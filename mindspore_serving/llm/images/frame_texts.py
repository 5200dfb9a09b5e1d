"""Texts around the frames of a video, by the time of each.  Knows no tokens."""

from collections.abc import Callable, Sequence
from datetime import timedelta

FrameTexts = Callable[[Sequence[float], float], list[str]]
"""Returns the texts before frames at some seconds of a video, and after the last, by its length."""

_SMALL = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
_TEENS = "fifteen sixteen seventeen eighteen nineteen"
_WORDS = f"{_SMALL} {_TEENS}".split()
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def plain_times(times: Sequence[float], seconds: float) -> list[str]:
    """Return minutes and seconds before each frame, and nothing after the last."""
    return [*(f"{_clock(time)} " for time in times), ""]


def smolvlm_times(times: Sequence[float], seconds: float) -> list[str]:
    """Return the texts that SmolVLM was trained with."""
    texts = [f"\nFrame from {_clock(time)}:" for time in times]
    length = timedelta(seconds=int(seconds))
    texts[0] = (
        f"You are provided the following series of {_in_words(len(times))} frames from a {length} "
        f"[H:MM:SS] video.\n{texts[0]}"
    )
    return [*texts, "\n\n"]


def _clock(time: float) -> str:
    return f"{int(time // 60):02d}:{int(time % 60):02d}"


def _in_words(count: int) -> str:
    """Return a number below 100 in English words."""
    if count < 20:
        return _WORDS[count]
    tens, rest = divmod(count, 10)
    return _TENS[tens - 2] + (f"-{_WORDS[rest]}" if rest else "")
