"""Turns of a speaker: where speech begins and ends in the sound of a session.

Decides by the probabilities of a detector; sound that is no part of a turn is dropped.
"""

from dataclasses import dataclass
from typing import Any

from mindspore_serving.errors import InvalidInputs, Overloaded
from mindspore_serving.frontends.memory import NO_MEMORY, Allowance
from mindspore_serving.frontends.realtime.detector import WINDOW_MS, SpeechDetector
from mindspore_serving.frontends.realtime.settings import ServerVad
from mindspore_serving.frontends.realtime.sound import SampleFormat, Samples

MAX_SECONDS = 300  # of a turn, and of sound that waits for a commit
MIN_MS = 100  # of sound that is committed
_LESS = 0.15  # speech that has begun goes on with a probability this much less


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """Begin of a turn, in milliseconds since that of the session."""

    at: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """End of a turn, and its samples of 16 bits."""

    at: int
    samples: bytes


class TurnDecision:
    """Decides by the probabilities of windows whether somebody speaks."""

    def __init__(self, settings: ServerVad) -> None:
        self._settings = settings
        self.is_speaking = False
        self._silence = 0  # ms

    def take(self, probability: float) -> bool:
        """Take the next window; return whether speech has begun or ended with it."""
        threshold = self._settings.threshold
        if not self.is_speaking:
            self.is_speaking, self._silence = probability >= threshold, 0
            return self.is_speaking
        is_silent = probability < max(threshold - _LESS, 0.01)
        self._silence = self._silence + WINDOW_MS if is_silent else 0
        self.is_speaking = self._silence < self._settings.silence_duration_ms
        return not self.is_speaking


class InputSound:
    """Sound of a session in one format, and its turns.

    Without `settings` the client ends turns.  `start` is in milliseconds since the begin of the
    session.  Sound counts in the quota `memory` until `close`.
    """

    def __init__(
        self,
        form: SampleFormat,
        settings: ServerVad | None,
        model: Any,
        memory: Allowance,
        start: int,
    ) -> None:
        self.format, self._memory = form, memory
        self._settings = settings
        self._detector = SpeechDetector(model, form.rate)
        self._decision = TurnDecision(settings) if settings else None
        self._start, self._sound = start, bytearray()
        self._first = self._next = 0  # numbers of samples: the first here, that after all windows
        self._window = form.rate * WINDOW_MS // 1000

    @property
    def milliseconds(self) -> int:
        """Length of the sound that waits."""
        return len(self._sound) // 2 * 1000 // self.format.rate

    @property
    def now(self) -> int:
        """Milliseconds of the session so far."""
        return self._time(self._first + len(self._sound) // 2)

    def append(self, samples: Samples) -> list[SpeechStarted | SpeechStopped]:
        """Take more sound; return the begins and ends of turns in it.

        Raises InvalidInputs if too much sound waits for a commit, Overloaded without memory.
        """
        if self.milliseconds + len(samples) * 1000 // self.format.rate > 1000 * MAX_SECONDS:
            text = f"over {MAX_SECONDS} seconds of sound wait; commit or clear them"
            raise InvalidInputs(text)
        if not self._memory.take(samples.nbytes):
            raise Overloaded(NO_MEMORY)
        self._sound += samples.tobytes()
        if self._settings is None or self._decision is None:
            return []
        changes: list[SpeechStarted | SpeechStopped] = []
        for probability in self._detector.probabilities(samples):
            self._next += self._window
            has_changed = self._decision.take(probability)
            if has_changed and self._decision.is_speaking:
                self._drop(self._next - self._window, self._settings.prefix_padding_ms)
                changes.append(SpeechStarted(self._time(self._first)))
            elif has_changed or (self._decision.is_speaking and self._is_too_long()):
                self._decision.is_speaking = False
                changes.append(SpeechStopped(self._time(self._next), self._cut(self._next)))
        if not self._decision.is_speaking:
            self._drop(self._next, self._settings.prefix_padding_ms)
        return changes

    def commit(self) -> bytes:
        """Return all samples, which are forgotten.  Raises InvalidInputs if they are few."""
        if self.milliseconds < MIN_MS:
            raise InvalidInputs(
                f"the buffer has {self.milliseconds} ms of sound, expected at least {MIN_MS} ms"
            )
        samples = self._cut(self._first + len(self._sound) // 2)
        self.clear()
        return samples

    def clear(self) -> None:
        """Forget all sound, and the begin of a turn."""
        self._cut(self._first + len(self._sound) // 2)
        self._next = self._first
        self._detector.reset()
        if self._decision is not None:
            self._decision.is_speaking = False

    def close(self) -> None:
        """Free the sound."""
        self._memory.give_back(len(self._sound))
        self._sound = bytearray()

    def _is_too_long(self) -> bool:
        return (self._next - self._first) // self.format.rate >= MAX_SECONDS - 1

    def _cut(self, end: int) -> bytes:
        """Remove and return the samples before number `end`."""
        size = 2 * (end - self._first)
        samples = bytes(memoryview(self._sound)[:size])
        del self._sound[:size]
        self._memory.give_back(len(samples))
        self._first = end
        return samples

    def _drop(self, end: int, kept: int) -> None:
        """Drop samples before number `end`, but the last `kept` milliseconds of them."""
        self._cut(max(self._first, end - kept * self.format.rate // 1000))

    def _time(self, number: int) -> int:
        return self._start + number * 1000 // self.format.rate
