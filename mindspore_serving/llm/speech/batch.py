"""Pieces of sound that are decoded together: of all requests, joining and leaving at any step.

A piece takes a row of the runner's tables.  Its sound is encoded and its first tokens are computed
alone; then every step computes one token of each row.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from mindspore_serving.llm.sounds.features import Sound, features_of
from mindspore_serving.llm.speech.decoding import PieceDecoding
from mindspore_serving.llm.speech.rules import Floats, likeliest_language
from mindspore_serving.llm.speech.runner import SpeechRunner
from mindspore_serving.llm.speech.settings import SpeechModel


class PieceOwner(Protocol):
    """Request that a piece belongs to."""

    @property
    def is_cancelled(self) -> bool: ...

    def finish(self, decoding: PieceDecoding, align: Callable[[list[int]], Floats]) -> None:
        """Take a text that is done; `align` computes how tokens follow the sound."""
        ...


class SpeechBatch:
    """Rows of a runner with the texts that are being written.  Used by one thread."""

    def __init__(self, runner: SpeechRunner, model: SpeechModel) -> None:
        self._runner, self._model = runner, model
        self._rows: list[tuple[PieceDecoding, PieceOwner]] = []
        self.num_steps = self.num_generated = self.num_prompt = 0

    @property
    def num_running(self) -> int:
        return len(self._rows)

    @property
    def has_room(self) -> bool:
        return len(self._rows) < self._runner.num_rows

    def encode(self, sound: Sound) -> None:
        """Encode a piece of sound for the next row."""
        self._runner.encode(features_of(sound, self._model.sizes.num_bins), len(self._rows))

    def find_language(self) -> str:
        """Return the language of the sound that was encoded last."""
        tokens = self._model.tokens
        logits = self._runner.start(len(self._rows), [tokens.start], [0])
        return likeliest_language(logits[0], tokens)

    def add(self, decoding: PieceDecoding, owner: PieceOwner) -> None:
        """Begin the text of the sound that was encoded last."""
        self._rows.append((decoding, owner))
        self._start(len(self._rows) - 1)
        self._drop_done()

    def step(self) -> None:
        """Compute a token of each row; rows whose requests were cancelled are dropped."""
        for row in reversed(range(len(self._rows))):
            if self._rows[row][1].is_cancelled:
                self._remove(row)
        if not self._rows:
            return
        decodings = [decoding for decoding, _ in self._rows]
        tokens = [decoding.last for decoding in decodings]
        lengths = [decoding.num_tokens for decoding in decodings]
        logits = self._runner.step(tokens, lengths)
        self.num_steps += 1
        for decoding, row in zip(decodings, logits, strict=True):
            decoding.take(row)
        self.num_generated += len(decodings)
        self._drop_done()

    def clear(self) -> None:
        """Drop all rows."""
        self._rows.clear()

    def _start(self, row: int) -> None:
        decoding, tokens = self._rows[row][0], self._model.tokens
        prefix = decoding.prefix
        at = prefix.index(tokens.start)
        logits = self._runner.start(row, prefix, [at, len(prefix) - 1])
        self.num_prompt += len(prefix)
        decoding.note_start(logits[0])
        decoding.take(logits[1])
        self.num_generated += 1

    def _drop_done(self) -> None:
        """Finish texts that are done, or begin them again; from the last row, which fills gaps."""
        for row in reversed(range(len(self._rows))):
            decoding, owner = self._rows[row]
            while decoding.is_done:
                text = self._model.tokenizer.decode(decoding.text_tokens(decoding.written))
                if owner.is_cancelled or not decoding.retry(text):
                    break
                self._start(row)
            if decoding.is_done:
                if not owner.is_cancelled:
                    owner.finish(decoding, partial(self._runner.align, row))
                self._remove(row)

    def _remove(self, row: int) -> None:
        last = len(self._rows) - 1
        if row != last:
            self._runner.move(last, row)
            self._rows[row] = self._rows[last]
        self._rows.pop()
