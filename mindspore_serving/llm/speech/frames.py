"""Transcription by models whose frames have tokens; pieces of sound are computed one by one.

Timestamps of words are those of their frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import openvino as ov

from mindspore_serving.core.speech_messages import SpokenSegment, SpokenWord
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.openvino.opening import compile_graph
from mindspore_serving.llm.sounds.features import HOP, RATE, Sound, normalised_log_mel
from mindspore_serving.llm.speech.conformer import ConformerGraph
from mindspore_serving.llm.speech.decoding import PieceText, compression_of, decode_behind
from mindspore_serving.llm.speech.models import SpeechModel
from mindspore_serving.llm.speech.pieces import SoundPiece
from mindspore_serving.llm.speech.request import SpeechRequest
from mindspore_serving.llm.speech.rules import Floats
from mindspore_serving.llm.speech.runner import FEW_KERNELS, infer, open_weights

MIN_SOUND = RATE // 10  # samples; silence follows a shorter sound
_PAUSE, _LONG = 0.8, 7.0  # seconds without a word that end a segment, and of a segment
_ENDS = (".", "?", "!", "。", "？", "！")


@dataclass(frozen=True, slots=True)
class FrameToken:
    """A token with its first frame, that behind its last, and its probability."""

    token: int
    begin: int
    end: int
    probability: float


class FrameRunner:
    """Runner of a graph from sound to tokens of frames (CTC).  Used by one thread.

    Raises StartError: an option that does not apply, tensors that do not fit.
    """

    num_rows, room = 1, "a piece of up to 30 s at a time"
    num_bytes = max_bytes = 0  # nothing is kept of a sound

    def __init__(self, model: SpeechModel, config: EngineConfig) -> None:
        options, weights = open_weights(model, config)
        self.precision, self._num_bins = options.precision, model.sizes.num_bins
        self._tokens = model.tokens
        graph = ConformerGraph(weights, model.sizes).build()
        properties = {**options.properties(weights.constants.group), **FEW_KERNELS}
        self._request = compile_graph(graph, properties).create_infer_request()
        self._kept = weights.constants.kept
        self.compute(np.zeros(RATE, np.float32))  # not first with one frame, as `SpeechRunner`

    def compute(self, sound: Sound) -> Floats:
        """Return a row for each frame of a sound."""
        if len(sound) < MIN_SOUND:
            sound = np.pad(sound, (0, MIN_SOUND - len(sound)))
        features = normalised_log_mel(sound, self._num_bins)
        infer(self._request, {"features": ov.Tensor(features[None])})
        frames: Floats = self._request.get_tensor("frames").data.copy()
        return frames

    def read(self, sound: Sound) -> list[FrameToken]:
        """Return the tokens of a sound."""
        return tokens_of(self.compute(sound), self._tokens.end)

    def close(self) -> None:
        self._request, self._kept = None, []


class FrameBatch:
    """Pieces of sound that are computed one after another.  Used by one thread."""

    num_running = num_prompt = 0

    def __init__(self, runner: FrameRunner, model: SpeechModel) -> None:
        self._runner, self._model = runner, model
        self.num_steps = self.num_generated = 0

    def has_room(self, width: int = 1) -> bool:
        return width == 1

    def begin(self, request: SpeechRequest) -> None:
        """Compute the next piece of a request, and write its text."""
        sound, (piece, take) = request.sound(), request.begin_whole()
        tokens = self._runner.read(sound)
        self.num_steps += 1
        self.num_generated += len(tokens)
        take(write(tokens, piece, self._model, has_times=request.body.has_times))

    def step(self) -> None:
        """Do nothing: a piece is done when it has begun."""

    def clear(self) -> None:
        """Do nothing: nothing is kept."""


def tokens_of(logits: Floats, blank: int) -> list[FrameToken]:
    """Return the likeliest tokens of frames without blanks, those of frames in a row once."""
    best = logits.argmax(-1)
    likely = np.exp(logits.max(-1) - np.logaddexp.reduce(logits, -1))
    tokens, begin = [], 0
    for token, frames in groupby(best.tolist()):
        end = begin + len(list(frames))
        if token != blank:
            tokens.append(FrameToken(token, begin, end, float(likely[begin:end].max())))
        begin = end
    return tokens


def write(
    tokens: Sequence[FrameToken], piece: SoundPiece, model: SpeechModel, *, has_times: bool
) -> PieceText:
    """Return the text of a piece: a segment, or with times several of a few seconds with words."""
    words = [_word(part, piece, model) for part in _by_words(tokens, model)]
    cuts = [0, *(_cuts(words) if has_times else ()), len(words)]
    segments, at = [], 0
    logprobs = [float(np.log(token.probability + 1e-30)) for token in tokens]
    for begin, end in zip(cuts, cuts[1:], strict=False):
        part = words[begin:end]
        count = sum(len(ids) for _, ids in part)
        ids = tuple(token.token for token in tokens[at : at + count])
        text = decode_behind(model.tokenizer, ids)
        if text.strip():
            times = (part[0][0].start, part[-1][0].end) if has_times else _whole(piece)
            mean = float(np.mean(logprobs[at : at + count]))
            row = (text, *times, ids, piece.start, 0.0, mean, compression_of(text), 0.0)
            segments.append(SpokenSegment(*row, words=tuple(word for word, _ in part)))
        at += count
    return PieceText(segments, None, len(tokens), logprobs)


def _whole(piece: SoundPiece) -> tuple[float, float]:
    return round(piece.start, 3), round(piece.start + piece.seconds, 3)


def _by_words(tokens: Sequence[FrameToken], model: SpeechModel) -> list[list[FrameToken]]:
    """Return the tokens of each word; a word begins with a space in its first token."""
    parts: list[list[FrameToken]] = []
    for token in tokens:
        if not parts or (model.tokenizer.token(token.token) or "").startswith("▁"):
            parts.append([])
        parts[-1].append(token)
    return parts


def _word(
    part: Sequence[FrameToken], piece: SoundPiece, model: SpeechModel
) -> tuple[SpokenWord, list[int]]:
    seconds = HOP / RATE * (1 << model.sizes.halvings)
    ids = [token.token for token in part]
    start, end = (
        round(piece.start + min(frame * seconds, piece.seconds), 3)
        for frame in (part[0].begin, part[-1].end)
    )
    likely = float(np.mean([token.probability for token in part]))
    return SpokenWord(decode_behind(model.tokenizer, ids), start, end, likely), ids


def _cuts(words: Sequence[tuple[SpokenWord, list[int]]]) -> list[int]:
    """Return the numbers of words that begin a segment, without the first."""
    cuts, begin = [], 0
    for number in range(1, len(words)):
        last, word = words[number - 1][0], words[number][0]
        is_long = word.end - words[begin][0].start > _LONG
        if last.text.endswith(_ENDS) or word.start - last.end > _PAUSE or is_long:
            cuts.append(number)
            begin = number
    return cuts
