"""Sounds of architectures: their features, and the tokens that stand for them in prompts.

A chat template writes one placeholder per sound, which is expanded here.  Knows no tokenizer and no
files.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.images.prompt_format import Config, id_of, size_of
from mindspore_serving.llm.sounds.features import RATE, Sound

Features: TypeAlias = Mapping[str, npt.NDArray[Any]]  # inputs of a sound tower, by name
_LONGEST = 300.0  # seconds, of models that take any: features fit the memory of a preparation
_SHORTEST = RATE // 2  # samples that Qwen3-ASR is given at least
_BEHIND = 3  # frames of silence: the sound reaches into two behind it, whose level counts, too


@dataclass(frozen=True, slots=True)
class SoundFormat:
    """Sounds as one model reads them.

    Attributes:
        token_id: the placeholder token, one for each vector.
        extract: returns the features of a sound by the library's feature extractor, and the number
            of its vectors, which is 0 if it is too short.
        longest: returns the seconds that the feature extractor takes at most.
        frame: tokens before and after the vectors of a sound that the template does not write.
        around: text before and after these.
        ends_in_vector: the last vector is that of the token after them.
        fill_id, is_bidirectional, merge_size: as in `ImagePromptFormat`.
        library_class: the feature extractor in place of that which the model's files name.
    """

    token_id: int
    extract: Callable[[Any, Sound], tuple[Features, int]]
    longest: Callable[[Any], float]
    frame: tuple[int, ...] = ()
    around: str = ""
    ends_in_vector: bool = False
    fill_id: int | None = None
    is_bidirectional: bool = False
    merge_size: int = 0
    library_class: str = "AutoFeatureExtractor"


def find_sound_format(config: Config) -> SoundFormat | None:
    """Return the format of the model with this config.json, None if it takes no sounds.

    Raises StartError for a missing key.
    """
    names = config.get("architectures") or [""]
    row = _ROWS.get(names[0])
    return row(config) if row is not None and config.get("audio_config") else None


def _qwen2_audio(config: Config) -> SoundFormat:
    return SoundFormat(id_of(config, "audio_token"), partial(_log_mel, is_padded=True), _samples)


def _qwen2_5_omni(config: Config) -> SoundFormat:
    return SoundFormat(id_of(config, "audio_token"), partial(_log_mel, is_padded=False), _samples)


def _qwen3_omni(config: Config) -> SoundFormat:
    extract = partial(_log_mel, is_padded=False, count=partial(_eighth, _window(config)))
    return SoundFormat(id_of(config, "audio_token"), extract, _samples)


def _qwen3_asr(config: Config) -> SoundFormat:
    extract = partial(_qwen3_asr_features, _window(config))
    return SoundFormat(
        id_of(config, "audio_token"), extract, lambda _: _LONGEST,
        library_class="WhisperFeatureExtractor",  # the model's needs PyTorch, for the same features
    )  # fmt: skip


def _voxtral(config: Config) -> SoundFormat:
    token_id = id_of(config, "audio_token")
    frame = (token_id + 1,)  # [BEGIN_AUDIO] of tekken.json, which config.json does not name
    sizes = config.get("audio_config") or {}
    positions = size_of(sizes, "max_source_positions", 1500)
    widths = size_of(sizes, "hidden_size", 1280), size_of(sizes, "intermediate_size", 5120)
    count = positions * widths[0] // widths[1]
    return SoundFormat(token_id, partial(_voxtral_features, count), lambda _: _LONGEST, frame)


def _window(config: Config) -> int:
    window = (config.get("audio_config") or {}).get("n_window", 50)
    if type(window) is not int or window < 1:
        raise StartError(
            f"config.json has n_window {window!r} in audio_config, expected a number of frames"
        )
    return window


def _gemma3n(config: Config) -> SoundFormat:
    frame = id_of(config, "boa_token"), id_of(config, "eoa_token")
    count = size_of(config, "audio_soft_tokens_per_image", 188)
    return SoundFormat(
        id_of(config, "audio_token"), partial(_gemma3n_features, count), lambda _: 30.0, frame,
        around="\n\n", ends_in_vector=True,
    )  # fmt: skip


def _gemma4(config: Config) -> SoundFormat:
    text = config.get("text_config") or {}
    frame = id_of(config, "boa_token"), id_of(config, "eoa_token")
    return SoundFormat(
        id_of(config, "audio_token"), _gemma4_features, lambda _: 30.0, frame,
        fill_id=text.get("pad_token_id") or 0,
    )  # fmt: skip


def _quarter(frames: int) -> int:
    """Return the length of frames that a convolution and a pooling have halved."""
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


def _eighth(window: int, frames: int) -> int:
    """Return the length of frames that three convolutions have halved, in pieces of two windows."""
    piece = 2 * window
    rest, whole = frames % piece, piece
    for _ in range(3):
        rest, whole = (rest + 1) // 2, (whole + 1) // 2
    return frames // piece * whole + rest


def _log_mel(
    extractor: Any, sound: Sound, *, is_padded: bool, count: Callable[[int], int] = _quarter
) -> tuple[Features, int]:
    """Return Whisper's features, with silence up to the longest sound if it `is_padded`.

    `count` returns the number of vectors of so many frames.
    """
    hop, width = extractor.hop_length, extractor.n_samples
    frames = -(-len(sound) // hop)
    if not is_padded:
        width = min(width, (frames + _BEHIND) * hop)
    padded = np.zeros(width, np.float32)
    padded[: len(sound)] = sound
    processed = extractor(padded, sampling_rate=RATE, return_tensors="np", padding="do_not_pad")
    features = processed["input_features"]
    mask = np.zeros((1, features.shape[2]), np.int64)
    mask[:, :frames] = 1
    if not is_padded:
        features, mask = features[:, :, :frames], mask[:, :frames]
    return {"input_features": features, "feature_attention_mask": mask}, count(frames)


def _qwen3_asr_features(window: int, extractor: Any, sound: Sound) -> tuple[Features, int]:
    """Return Whisper's features, and silence up to whole pieces of two windows."""
    padded = np.zeros(max(len(sound), _SHORTEST), np.float32)
    padded[: len(sound)] = sound
    frames = len(padded) // extractor.hop_length
    features = _whole(extractor, padded)[:, :, :frames]
    behind = -frames % (2 * window)
    features = np.pad(features, ((0, 0), (0, 0), (0, behind)))
    mask = np.pad(np.ones((1, frames), np.int64), ((0, 0), (0, behind)))
    inputs = {"input_features": features, "input_features_mask": mask}
    return inputs, _eighth(window, frames)


def _voxtral_features(count: int, extractor: Any, sound: Sound) -> tuple[Features, int]:
    """Return Whisper's features in pieces of 30 s, with silence behind the sound.

    Each piece has `count` vectors.
    """
    pieces = -(-len(sound) // extractor.n_samples)
    padded = np.zeros(pieces * extractor.n_samples, np.float32)
    padded[: len(sound)] = sound
    features = _whole(extractor, padded)[0].reshape(-1, pieces, extractor.nb_max_frames)
    return {"input_features": np.ascontiguousarray(features.swapaxes(0, 1))}, pieces * count


def _whole(extractor: Any, sound: Sound) -> npt.NDArray[Any]:
    """Return Whisper's features of a sound of any length, [1, bins, frames]."""
    processed = extractor(
        sound, sampling_rate=RATE, return_tensors="np", padding="do_not_pad", truncation=False
    )
    features: npt.NDArray[Any] = processed["input_features"]
    return features


def _gemma4_features(extractor: Any, sound: Sound) -> tuple[Features, int]:
    features = _mel(extractor, sound)
    mask = features["input_features_mask"]
    return features, int(mask[0, ::2][::2].sum())  # halved by two convolutions


def _gemma3n_features(count: int, extractor: Any, sound: Sound) -> tuple[Features, int]:
    """Return features, and the number of vectors, the same for all sounds, with that of the end."""
    features = _mel(extractor, sound)
    return features, count + 1 if features["input_features_mask"].any() else 0


def _mel(extractor: Any, sound: Sound) -> Features:
    processed = extractor([sound], return_tensors="np")
    return {name: processed[name] for name in ("input_features", "input_features_mask")}


def _samples(extractor: Any) -> float:
    return float(extractor.n_samples / RATE)


_ROWS: dict[str, Callable[[Config], SoundFormat]] = {
    "Gemma3nForConditionalGeneration": _gemma3n,
    "Gemma4ForConditionalGeneration": _gemma4,
    "Qwen2AudioForConditionalGeneration": _qwen2_audio,
    "Qwen2_5OmniThinkerForConditionalGeneration": _qwen2_5_omni,
    "Qwen3ASRForConditionalGeneration": _qwen3_asr,
    "Qwen3OmniMoeThinkerForConditionalGeneration": _qwen3_omni,
    "VoxtralForConditionalGeneration": _voxtral,
}
