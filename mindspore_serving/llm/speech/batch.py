"""Pieces of sound that are decoded together: of all requests, joining and leaving at any step.

A piece takes a row of the runner's tables, in a beam search several.  Its sound is encoded and its
first tokens are computed alone; then every step computes one token of each row.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from mindspore_serving.llm.sounds.features import Sound, features_of
from mindspore_serving.llm.speech.decoding import PieceDecoding
from mindspore_serving.llm.speech.models import SpeechModel
from mindspore_serving.llm.speech.moonshine import samples_of
from mindspore_serving.llm.speech.request import SpeechRequest
from mindspore_serving.llm.speech.rules import Floats, likeliest_language
from mindspore_serving.llm.speech.runner import NewTokens, SpeechRunner


class PieceOwner(Protocol):
    """Request that a piece belongs to."""

    @property
    def is_cancelled(self) -> bool: ...

    def finish(self, decoding: PieceDecoding, align: Callable[[list[int]], Floats]) -> None:
        """Take a text that is done; `align` computes how tokens follow the sound."""
        ...


class SpeechBatch:
    """Pieces of a runner with the texts that are being written.  Used by one thread."""

    def __init__(self, runner: SpeechRunner, model: SpeechModel) -> None:
        self._runner, self._model = runner, model
        self._rows: list[tuple[PieceDecoding, PieceOwner, int]] = []  # with the piece's key
        self._key = 0  # of the sound that was encoded last
        self.num_steps = self.num_generated = self.num_prompt = 0

    @property
    def num_running(self) -> int:
        return len(self._rows)

    def has_room(self, width: int = 1) -> bool:
        """Return whether a piece of which `width` texts are followed may begin."""
        used = sum(decoding.width for decoding, _, _ in self._rows)
        return used + width <= self._runner.num_rows

    def begin(self, request: SpeechRequest) -> None:
        """Begin the text of the next piece of a request."""
        self.encode(request.sound())
        if self._model.tokens.languages and not request.language:
            request.language = self.find_language()
        self.add(*request.begin())

    def encode(self, sound: Sound) -> None:
        """Encode a piece of sound."""
        self._key += 1
        sizes = self._model.sizes
        read = samples_of(sound) if sizes.has_lengths else features_of(sound, sizes.num_bins)
        self._runner.encode(read, self._key)

    def find_language(self) -> str:
        """Return the language of the sound that was encoded last."""
        tokens = self._model.tokens
        logits = self._runner.start(self._key, [tokens.start], [0])
        return likeliest_language(logits[0], tokens)

    def add(self, decoding: PieceDecoding, owner: PieceOwner) -> None:
        """Begin the text of the sound that was encoded last."""
        self._rows.append((decoding, owner, self._key))
        self._start(len(self._rows) - 1)
        self._drop_done()

    def step(self) -> None:
        """Compute a token of each row; rows whose requests were cancelled are dropped."""
        for row in reversed(range(len(self._rows))):
            if self._rows[row][1].is_cancelled:
                self._remove(row)
        if not self._rows:
            return
        new = [NewTokens(key, *decoding.newest) for decoding, _, key in self._rows]
        logits = self._runner.step(new)
        self.num_steps += 1
        for (decoding, _, _), rows in zip(self._rows, logits, strict=True):
            decoding.take(rows)
            self.num_generated += len(rows)
        self._drop_done()

    def clear(self) -> None:
        """Drop all pieces, also sound whose text has not begun."""
        self._runner.drop(self._key)
        for row in reversed(range(len(self._rows))):
            self._remove(row)

    def _start(self, row: int) -> None:
        decoding, _, key = self._rows[row]
        tokens = self._model.tokens
        prefix = decoding.prefix
        at = prefix.index(tokens.start)
        logits = self._runner.start(key, prefix, [at, len(prefix) - 1])
        self.num_prompt += len(prefix)
        decoding.note_start(logits[0])
        decoding.take(logits[1:])
        self.num_generated += 1

    def _drop_done(self) -> None:
        """Finish texts that are done, or begin them again."""
        for row in reversed(range(len(self._rows))):
            decoding, owner, key = self._rows[row]
            while decoding.is_done:
                text = self._model.tokenizer.decode(decoding.text_tokens(decoding.written))
                if owner.is_cancelled or not decoding.retry(text):
                    break
                self._start(row)
            if decoding.is_done:
                if not owner.is_cancelled:
                    owner.finish(decoding, partial(self._runner.align, key))
                self._remove(row)

    def _remove(self, row: int) -> None:
        *_, key = self._rows.pop(row)
        self._runner.drop(key)
