"""Images and sounds of one request, in the text of its prompt and in its tokens."""

from collections.abc import Mapping, Sequence
from itertools import chain, count, islice
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
from mindspore_serving.llm.images.reader import PreparedImage, expand, to_arrays
from mindspore_serving.llm.images.tower import Tower

Messages: TypeAlias = Sequence[Message]


class ImagePrompt:
    """Images and sounds of `messages`, or images of the text `markdown`, read by `reader`.

    `messages` are those of the request, with texts and marks in place of images, sounds, videos and
    documents.  Raises InvalidField naming a file that cannot be used.
    """

    def __init__(self, reader: MediaReader, messages: Messages | None, markdown: str = "") -> None:
        sources = find_media(messages or (), markdown)
        replacements = reader.read(sources)
        self._links: dict[str, ImageMark] = {}
        if markdown:
            self._links = {
                source.url: mark
                for source, (mark,) in zip(sources, replacements, strict=True)
                if isinstance(mark, ImageMark)
            }
        self._markdown = markdown
        self.messages = None if messages is None else replace_media(messages, replacements)
        kinds = {image.kind for image in self.of(self.messages)}
        self._images = reader.images
        self._readers = {kind: each for kind, each in reader.by_kind.items() if kind in kinds}

    @property
    def tokens(self) -> dict[str, str]:
        """Texts that stand for images and sounds, by their kind, if there are any."""
        return {kind: reader.token for kind, reader in self._readers.items()}

    def of(self, messages: Messages | None) -> list[PreparedImage]:
        """Return the images and sounds of some of the messages, in order; or of the text."""
        links = [self._links[match[1]] for match in MARKDOWN.finditer(self._markdown)]
        parts = parts_of(messages or ())
        return [mark.image for mark in (*links, *parts) if isinstance(mark, ImageMark)]

    def expand_markdown(self, text: str) -> str:
        """Return `text` with the texts of its images in place of their links."""
        reader, indices = self._images, count()
        if not self._links or reader is None:
            return text
        return MARKDOWN.sub(
            lambda match: reader.text_of(next(indices), self._links[match[1]].image), text
        )

    def expand(self, text: str, messages: Messages) -> str:
        """Return the text of some of the messages with the texts of its images and sounds."""
        media = self.of(messages)
        for kind, reader in self._readers.items():
            text = expand(text, reader, [each for each in media if each.kind == kind], kind)
        return text


def to_prompt_images(
    reader: MediaReader,
    tower: Tower,
    ids: Sequence[int],
    images: Sequence[PreparedImage],
    computed: Any = None,
) -> PromptImages:
    """Return the images and sounds of the prompt `ids` as the engine takes them.

    `computed` are their vectors, None to compute them now.

    Raises InvalidInputs if the prompt lacks tokens for them, ServingError if they cannot be
    computed.
    """
    positions: dict[int, list[int]] = {}  # of each image or sound, by its number
    rows, axes = [], None
    for kind, each in reader.by_kind.items():
        media = {i: image for i, image in enumerate(images) if image.kind == kind}
        if not media:
            continue
        row = each.prompt_format
        rows.append(row)
        tokens = [i for i, token_id in enumerate(ids) if token_id == row.token_id]
        positions |= _divided(tokens, media, kind)
        if row.merge_size:
            grids = [grid_of(to_arrays(x)[GRID][0], row.merge_size) for x in media.values()]
            axes = rope_positions(len(ids), tokens, grids)
    computed = computed or tower.compute(images)
    order = sorted(positions, key=lambda number: positions[number][0])
    return PromptImages(
        list(chain.from_iterable(positions[number] for number in order)),
        [computed[number] for number in order],
        is_bidirectional=any(row.is_bidirectional for row in rows),
        fill_id=next((row.fill_id for row in rows if row.fill_id is not None), None),
        rope_positions=axes,
    )


def _divided(
    tokens: list[int], media: Mapping[int, PreparedImage], kind: str
) -> dict[int, list[int]]:
    """Return which of `tokens` stand for each of the media of a kind.

    Raises InvalidInputs if these are too few or too many.
    """
    expected = sum(image.count for image in media.values())
    if len(tokens) != expected:
        raise InvalidInputs(
            f"the prompt has {len(tokens)} {kind} tokens, expected {expected} for its {kind}s"
        )
    remaining = iter(tokens)
    return {number: list(islice(remaining, image.count)) for number, image in media.items()}
