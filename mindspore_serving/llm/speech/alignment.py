"""Times of words, by how the tokens of a text attend to the sound.

Some heads of the decoder follow the sound.  Their weights, smoothed over time, say which frames a
token was written from; the cheapest way through them in which time never goes back gives the times.
"""

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mindspore_serving.core.speech_messages import SpokenWord
from mindspore_serving.llm.sounds.features import HOP, RATE
from mindspore_serving.llm.speech.decoding import PieceText
from mindspore_serving.llm.speech.models import SpeechModel
from mindspore_serving.llm.speech.rules import Floats

FRAME_SECONDS = 2 * HOP / RATE  # the encoder returns a frame for two
_SMOOTHED = 7  # frames of the median
# Languages that are written without spaces: a word is as many tokens as a character takes.
_UNSPACED = ("zh", "ja", "th", "lo", "my", "yue")
_BEFORE, _AFTER = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"  # marks that belong to the word beside


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Aligner:
    """Alignment of the tokens of a piece with its sound.

    `scores` computes it for all tokens of a text, of which `prefix` are the first.  `seconds` is
    the length of the piece.
    """

    scores: Callable[[list[int]], Floats]
    prefix: Sequence[int]
    seconds: float


def with_words(text: PieceText, aligner: Aligner, model: SpeechModel, language: str) -> PieceText:
    """Return a text whose segments have words with times."""
    end = model.tokens.end
    tokens = [token for row in text.segments for token in row.tokens if token < end]
    if not tokens:
        return text
    whole = [*aligner.prefix, model.tokens.no_times, *tokens, end]
    num_frames = max(1, round(aligner.seconds / FRAME_SECONDS))
    scores = aligner.scores(whole)[:, :, :num_frames]
    rows = _normalised(scores)[:, len(aligner.prefix) : -1].mean(0)
    token_at, frame_at = cheapest_way(-rows)
    firsts = np.flatnonzero(np.diff(token_at, prepend=-1))
    starts = [*(frame_at[firsts] * FRAME_SECONDS).tolist()]
    at, segments = 0, []
    for row in text.segments:
        words = []
        for word in _words([token for token in row.tokens if token < end], model, language):
            begin, after = at, at + len(word.tokens)
            # Row 0 stands for the token before the text, so a token ends where the next begins.
            times = (starts[begin], starts[min(after, len(starts) - 1)])
            start, stop = (round(row.seek + time, 3) for time in times)
            likely = float(np.exp(np.mean(text.logprobs[begin:after])))
            words.append(SpokenWord(word.text, start, max(start, stop), likely))
            at = after
        segments.append(msgspec.structs.replace(row, words=tuple(words)))
    return replace(text, segments=segments)


def cheapest_way(costs: Floats) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return rows and columns of the cheapest way from the first cell to the last.

    A step goes to the next row, to the next column, or to both.
    """
    height, width = costs.shape
    total = np.full((height + 1, width + 1), np.inf)
    total[0, 0] = 0
    steps = np.zeros((height + 1, width + 1), np.int8)
    for column in range(1, width + 1):
        before, diagonal = total[1:, column - 1].tolist(), total[:-1, column - 1].tolist()
        price = costs[:, column - 1].tolist()
        above = np.inf if column else 0.0
        for row in range(height):
            choices = (diagonal[row], above, before[row])
            step = choices.index(min(choices))
            above = price[row] + choices[step]
            total[row + 1, column], steps[row + 1, column] = above, step
    steps[0, :], steps[:, 0] = 2, 1
    rows, columns = [], []
    row, column = height, width
    while row > 0 or column > 0:
        rows.append(row - 1)
        columns.append(column - 1)
        step = steps[row, column]
        row, column = row - (step != 2), column - (step != 1)
    return np.array(rows[::-1]), np.array(columns[::-1])


def _normalised(scores: Floats) -> Any:
    """Return the weights of the frames by head and token, standardised and smoothed."""
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    deviation = weights.std(1, keepdims=True)
    weights = (weights - weights.mean(1, keepdims=True)) / np.maximum(deviation, 1e-10)
    half = _SMOOTHED // 2
    if weights.shape[-1] <= half:
        return weights
    padded = np.pad(weights, ((0, 0), (0, 0), (half, half)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, _SMOOTHED, -1)
    return np.sort(windows, -1)[..., half]


def _words(tokens: Sequence[int], model: SpeechModel, language: str) -> list[_Word]:
    """Join tokens to words, with the marks before and after them."""
    words: list[_Word] = []
    for text, part in _characters(tokens, model):
        is_mark = text.strip() in string.punctuation
        begins = language in _UNSPACED or text.startswith(" ") or is_mark
        if begins or not words:
            words.append(_Word(text, part))
        else:
            words[-1] = _Word(words[-1].text + text, words[-1].tokens + part)
    return _with_marks(words)


def _characters(tokens: Sequence[int], model: SpeechModel) -> list[tuple[str, tuple[int, ...]]]:
    """Return texts of whole characters with their tokens."""
    pieces: list[tuple[str, tuple[int, ...]]] = []
    part: list[int] = []
    for token in tokens:
        part.append(token)
        text = model.tokenizer.decode(part)
        if "\ufffd" not in text:
            pieces.append((text, tuple(part)))
            part = []
    if part:
        pieces.append((model.tokenizer.decode(part), tuple(part)))
    return pieces


def _with_marks(words: list[_Word]) -> list[_Word]:
    joined: list[_Word] = []
    for word in words:
        last = joined[-1] if joined else None
        if last is not None and (
            word.text.strip() in _AFTER
            and not word.text.startswith(" ")
            or last.text.strip() in _BEFORE
            and last.text.startswith(" ")
        ):
            joined[-1] = _Word(last.text + word.text, last.tokens + word.tokens)
        else:
            joined.append(word)
    return joined
