"""Choice of the runtime of a step by its number of tokens, from measured times."""

from collections.abc import Sequence
from dataclasses import dataclass

LARGEST = 64  # tokens of measured steps
ALL = 2**31  # more tokens than steps have


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step of `tokens` in the native runtime, and in OpenVINO."""

    tokens: int
    native: float
    openvino: float


@dataclass(frozen=True, slots=True)
class Choice:
    """Largest number of tokens of a step that the native runtime computes; 0: of none."""

    last_native: int
    times: tuple[StepTimes, ...] = ()

    def describe(self) -> str:
        """Describe the choice with the times that it follows from, for people."""
        if not self.times:
            return "openvino computes all steps, as no time was left to measure"
        measured = ", ".join(
            f"{each.tokens}: {each.native * 1e3:.1f} / {each.openvino * 1e3:.1f}"
            for each in self.times
        )
        who = f"steps of up to {self.last_native} tokens, openvino the others"
        if self.last_native == ALL:
            who = "all steps"
        return f"native computes {who} (ms by tokens, native / openvino: {measured})"


def choose(times: Sequence[StepTimes]) -> Choice:
    """Return the choice with the least loss: the sum of its times relative to the better ones.

    A single time that another process has disturbed does not decide it.  Larger steps than the
    measured ones are OpenVINO's, unless native computes those of `LARGEST` tokens too: those of
    mixtures, whose rows OpenVINO multiplies one by one.
    """

    def loss(last: int) -> float:
        return sum(
            (each.native if each.tokens <= last else each.openvino)
            / min(each.native, each.openvino)
            for each in times
        )

    last = min((0, *(each.tokens for each in times)), key=loss)
    return Choice(ALL if last == LARGEST else last, tuple(times))
