"""Sounds of a request: fetched, decoded, and made to features as a model's library does.

Their vectors are computed elsewhere (`tower`).  Threads may share a reader.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving import extras
from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import InvalidField, InvalidInputs, StartError
from mindspore_serving.llm.checkpoint.model_files import find_config
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.loading import load_file
from mindspore_serving.llm.images.messages import AUDIO, MediaSource
from mindspore_serving.llm.images.reader import (
    PROCESSORS,
    MessageArray,
    PreparedImage,
    digest_of,
    has_processor,
)
from mindspore_serving.llm.images.sound_formats import SoundFormat, find_sound_format
from mindspore_serving.llm.sounds.decoding import Samples, read_sound
from mindspore_serving.llm.sounds.features import RATE, Sound
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

_FEWEST = RATE // 50  # samples of a sound of which there are features


class SoundReader:
    """Reads the sounds in prompts for one model.

    Args:
        sound_format: how the model reads and writes sounds.
        names: texts of the placeholder token, and of the tokens of `sound_format.frame`.
        extractor: feature extractor of the model.
        config: the limits.

    `max_seconds` is the longest sound that the model reads.
    """

    def __init__(
        self, sound_format: SoundFormat, names: Sequence[str], extractor: Any, config: EngineConfig
    ) -> None:
        self.prompt_format = sound_format
        self.token, self._before, self._behind = (*names, "", "")[:3]
        self._extractor, self._config = extractor, config
        self.max_seconds = sound_format.longest(extractor)

    def read_sound(self, source: MediaSource) -> PreparedImage:
        """Fetch, decode and prepare a sound.  Raises InvalidField."""
        config = self._config
        try:
            file = source.content or load_file(source.url, config.max_file_bytes, config)
            if config.max_audio_seconds < self.max_seconds:
                samples = read_sound(file, config.max_audio_seconds)
            else:
                samples = read_sound(file, self.max_seconds, "the model takes")
            return self.prepare(samples, digest_of(b"sound", file))
        except InvalidInputs as error:
            raise InvalidField(source.field, str(error)) from None

    def text_of(self, index: int, image: PreparedImage) -> str:
        """Return the text of a sound, which is the same at any `index`."""
        return image.text

    def prepare(self, samples: Samples, digest: bytes) -> PreparedImage:
        """Prepare a decoded sound.  Raises InvalidInputs if it is too short."""
        sound = samples / np.float32(32768)
        if len(sound) < _FEWEST:
            raise _too_short(sound)
        features, count = self.prompt_format.extract(self._extractor, sound)
        if count < 1:
            raise _too_short(sound)
        inputs = {name: MessageArray.of(array) for name, array in features.items()}
        row = self.prompt_format
        tokens = self.token * (count - row.ends_in_vector)
        text = row.around + self._before + tokens + self._behind + row.around
        return PreparedImage(digest, text, count, inputs, AUDIO)


def _too_short(sound: Sound) -> InvalidInputs:
    seconds = len(sound) / RATE
    return InvalidInputs(f"is of {seconds:.3f} seconds, which is too short for the model")


def open_sound_reader(
    directory: Path, tokenizer: Tokenizer | None, config: EngineConfig
) -> SoundReader | None:
    """Open the reader of a model, None if it takes no sounds or `max_audios` is 0.

    Raises StartError: a library is missing, the feature extractor is missing, broken or of another
    rate, or the placeholder token is unknown.
    """
    sound_format = find_sound_format(find_config(directory)) if config.max_audios else None
    if sound_format is None or tokenizer is None:
        return None
    names = []
    for token_id in (sound_format.token_id, *sound_format.frame):
        names.append(tokenizer.token(token_id) or "")
        if not names[-1]:
            raise StartError(f"config.json names audio token {token_id}, which the tokenizer lacks")
    extractor = _open_extractor(directory, sound_format.library_class)
    if extractor.sampling_rate != RATE:
        raise StartError(
            f"{directory / PROCESSORS[0]} has sampling_rate {extractor.sampling_rate}, expected "
            f"{RATE}"
        )
    return SoundReader(sound_format, names, extractor, config)


def _open_extractor(directory: Path, library_class: str) -> Any:
    """Open the feature extractor of the model in `directory`.  Raises StartError."""
    if not has_processor(directory):
        raise StartError(f"{directory} has no {PROCESSORS[0]}, which says how sounds are read")
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, "a model that takes sounds")) from error
    try:
        return getattr(transformers, library_class).from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # the library has no errors of its own
        raise StartError(
            f"{directory / PROCESSORS[0]} cannot be used: {error_text(error)}"
        ) from error
