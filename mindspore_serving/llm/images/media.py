"""Files of a request as parts of its messages: images, sounds, frames with times, pages, texts.

Threads may share a reader.
"""

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mindspore_serving.errors import InvalidField, InvalidInputs
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.documents import extract_texts, is_pdf, read_text, render_pages
from mindspore_serving.llm.images.loading import check_counts, load_file
from mindspore_serving.llm.images.messages import (
    AUDIO,
    DOCUMENT,
    IMAGE,
    PHRASES,
    VIDEO,
    MediaSource,
    Part,
    text_part,
)
from mindspore_serving.llm.images.reader import PreparedImage, PromptImageReader, digest_of
from mindspore_serving.llm.images.sound_reader import SoundReader
from mindspore_serving.llm.images.video import VideoFile

_SHARE = (
    0.8  # of preparation_timeout, at which the process is killed: an error names the file before
)


class ImageMark(dict[str, Any]):
    """Part that a chat template gets in place of an image or a sound, with that."""

    def __init__(self, image: PreparedImage) -> None:
        super().__init__(type=image.kind)
        self.image = image


@dataclass(frozen=True, slots=True)
class MediaReader:
    """Reads the files in messages to one model.

    Attributes:
        images: of a model that takes pictures.
        config: the limits.
        sounds: of a model that takes sounds.
    """

    images: PromptImageReader | None
    config: EngineConfig
    sounds: SoundReader | None = None

    @property
    def by_kind(self) -> dict[str, PromptImageReader | SoundReader]:
        """Readers of a model, by what they read."""
        readers = {IMAGE: self.images, AUDIO: self.sounds}
        return {kind: reader for kind, reader in readers.items() if reader is not None}

    def read(self, sources: Sequence[MediaSource]) -> Iterator[list[Part]]:
        """Return the parts that take the place of each file, each read in its turn.

        Raises InvalidField, naming the file: too many, not allowed, too large, or broken.
        """
        for source in sources:
            reader, kind = (self.sounds, "sound") if source.kind == AUDIO else (self.images, IMAGE)
            if reader is None and source.kind != DOCUMENT:
                text = f"is {PHRASES[source.kind]}, but the model reads no {kind}s"
                raise InvalidField(source.field, text)
        check_counts(sources, self.config)
        deadline = time.monotonic() + _SHARE * self.config.preparation_timeout
        is_alone = len(sources) == 1
        return (self._read(source, deadline, is_alone=is_alone) for source in sources)

    def _read(self, source: MediaSource, deadline: float, *, is_alone: bool) -> list[Part]:
        if source.kind == IMAGE:
            assert self.images is not None
            return [ImageMark(self.images.read_image(source, is_alone=is_alone))]
        if source.kind == AUDIO:
            assert self.sounds is not None
            return [ImageMark(self.sounds.read_sound(source))]
        try:
            file = load_file(source.url, self.config.max_file_bytes, self.config)
            if source.kind == VIDEO:
                return self._read_video(file, deadline)
            return self._read_document(file, source.name, deadline)
        except InvalidInputs as error:
            raise InvalidField(source.field, str(error)) from None

    def _read_video(self, file: bytes, deadline: float) -> list[Part]:
        images = self.images
        assert images is not None
        name, options = digest_of(file), images.prompt_format.frame_options
        times, marks = [], []
        with VideoFile(file, self.config, deadline) as video:
            if images.takes_videos:
                return _parts(*images.prepare_video(video, name))
            for at, image in video.frames():
                times.append(at)
                digest = digest_of(name, struct.pack("<d", at))
                marks.append(images.prepare(image, digest, options))
        return _parts(images.prompt_format.frames(times, video.seconds), marks)

    def _read_document(self, file: bytes, name: str, deadline: float) -> list[Part]:
        if not is_pdf(file):
            return [text_part(_headed(name, read_text(file)))]
        if self.images is None:
            text = "\n\n".join(extract_texts(file, self.config, deadline)).strip()
            if not text:
                raise InvalidInputs("has no text, only pictures, and the model reads no images")
            return [text_part(_headed(name, text))]
        digest, parts = digest_of(file), list[Part]()
        for number, image in enumerate(render_pages(file, self.config, deadline), 1):
            page = digest_of(digest, b"page", struct.pack("<q", number))
            parts += [
                text_part(f"{name}, page {number}: " if name else f"Page {number}: "),
                ImageMark(self.images.prepare(image, page)),
            ]
        return parts


def _parts(texts: Sequence[str], images: Sequence[PreparedImage]) -> list[Part]:
    """Return a video as the text before each image, the image, and the text after the last."""
    parts: list[Part] = []
    for text, image in zip(texts, [*images, None], strict=True):
        parts += [text_part(text)] if text else []
        parts += [ImageMark(image)] if image is not None else []
    return parts


def _headed(name: str, text: str) -> str:
    return f"{name}\n\n{text}" if name else text
