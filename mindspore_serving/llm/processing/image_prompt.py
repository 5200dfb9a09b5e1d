"""Images of one request, in the text of its prompt and in its tokens."""

from collections.abc import Sequence
from itertools import count
from typing import Any, TypeAlias

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.engine.prompt_images import PromptImages
from mindspore_serving.llm.images.media import ImageMark, MediaReader
from mindspore_serving.llm.images.messages import (
    MARKDOWN,
    Message,
    find_media,
    parts_of,
    replace_media,
)
from mindspore_serving.llm.images.qwen_formats import GRID, grid_of, rope_positions
from mindspore_serving.llm.images.reader import PreparedImage, PromptImageReader, to_arrays
from mindspore_serving.llm.images.tower import Tower

Messages: TypeAlias = Sequence[Message]


class ImagePrompt:
    """Images of `messages`, or of the text `markdown`, read by `reader`.

    `messages` are those of the request, with texts and marks in place of images, videos and
    documents.  Raises InvalidField naming a file that cannot be used.
    """

    def __init__(self, reader: MediaReader, messages: Messages | None, markdown: str = "") -> None:
        sources = find_media(messages or (), markdown)
        replacements = reader.read(sources)
        self._reader = reader.images
        self._links: dict[str, ImageMark] = {}
        if markdown:
            self._links = {
                source.url: mark
                for source, (mark,) in zip(sources, replacements, strict=True)
                if isinstance(mark, ImageMark)
            }
        self._markdown = markdown
        self.messages = None if messages is None else replace_media(messages, replacements)
        self._has_images = bool(self.of(self.messages))

    @property
    def token(self) -> str:
        """Text that stands for an image; "" if there are none."""
        return self._reader.token if self._reader is not None and self._has_images else ""

    def of(self, messages: Messages | None) -> list[PreparedImage]:
        """Return the images of some of the messages, in order; or of the text."""
        links = [self._links[match[1]] for match in MARKDOWN.finditer(self._markdown)]
        parts = parts_of(messages or ())
        return [mark.image for mark in (*links, *parts) if isinstance(mark, ImageMark)]

    def expand_markdown(self, text: str) -> str:
        """Return `text` with the texts of its images in place of their links."""
        reader, indices = self._reader, count()
        if not self._links or reader is None:
            return text
        return MARKDOWN.sub(
            lambda match: reader.text_of(next(indices), self._links[match[1]].image), text
        )

    def expand(self, text: str, messages: Messages) -> str:
        """Return the text of some of the messages with the texts of its images."""
        if self._reader is None or not self._has_images:
            return text
        return self._reader.expand(text, self.of(messages))


def to_prompt_images(
    reader: PromptImageReader,
    tower: Tower,
    ids: Sequence[int],
    images: Sequence[PreparedImage],
    computed: Any = None,
) -> PromptImages:
    """Return the images of the prompt `ids` as the engine takes them.

    `computed` are the vectors of the images, None to compute them now.

    Raises InvalidInputs if the prompt lacks tokens for them, ServingError if they cannot be
    computed.
    """
    positions = [
        index for index, token_id in enumerate(ids) if token_id == reader.prompt_format.token_id
    ]
    expected = sum(image.count for image in images)
    if len(positions) != expected:
        raise InvalidInputs(
            f"the prompt has {len(positions)} image tokens, expected {expected} for its images"
        )
    prompt_format, parts = reader.prompt_format, None
    if prompt_format.merge_size:
        grids = [grid_of(to_arrays(image)[GRID][0], prompt_format.merge_size) for image in images]
        parts = rope_positions(len(ids), positions, grids)
    return PromptImages(
        positions, computed or tower.compute(images),
        is_bidirectional=prompt_format.is_bidirectional, fill_id=prompt_format.fill_id,
        rope_positions=parts,
    )  # fmt: skip
