"""Images and sounds of one request, in the text of its prompt and in its tokens."""

from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any, TypeAlias

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.engine.prompt_images import PromptImages
from mindspore_serving.llm.images.media import ImageMark, MediaReader
from mindspore_serving.llm.images.messages import (
    IMAGE,
    MARKDOWN,
    Message,
    find_media,
    parts_of,
    replace_media,
)
from mindspore_serving.llm.images.qwen_formats import grid_and_interval, rope_positions
from mindspore_serving.llm.images.reader import (
    PreparedImage,
    PromptImageReader,
    expand,
    to_arrays,
)
from mindspore_serving.llm.images.sound_reader import SoundReader
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
        self._readers = reader.by_kind
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
        self.tokens = {  # by the kind of what they stand for
            kind: each.token for kind, each in reader.by_kind.items() if kind in kinds
        }

    def of(self, messages: Messages | None) -> list[PreparedImage]:
        """Return the images and sounds of some of the messages, in order; or of the text."""
        links = [self._links[match[1]] for match in MARKDOWN.finditer(self._markdown)]
        parts = parts_of(messages or ())
        return [mark.image for mark in (*links, *parts) if isinstance(mark, ImageMark)]

    def expand_markdown(self, text: str) -> str:
        """Return `text` with the texts of its images in place of their links."""
        if not self._links:
            return text
        texts = iter(self._texts(IMAGE, self.of(None)))
        return MARKDOWN.sub(lambda _: next(texts), text)

    def expand(self, text: str, messages: Messages) -> str:
        """Return the text of some of the messages with the texts of its images and sounds."""
        media = self.of(messages)
        for kind, token in self.tokens.items():
            text = expand(text, token, self._texts(kind, media), kind)
        return text

    def _texts(self, kind: str, media: Sequence[PreparedImage]) -> list[str]:
        """Return the texts of those of `media` that are of a kind, in order."""
        chosen = [medium for medium in media if medium.kind == kind]
        reader = self._readers[kind]
        return [reader.text_of(index, medium) for index, medium in enumerate(chosen)]


def to_prompt_images(
    reader: MediaReader,
    tower: Tower,
    ids: Sequence[int],
    images: Sequence[PreparedImage],
    computed: Any = None,
) -> PromptImages:
    """Return the images and sounds of the prompt `ids` as the engine takes them.

    `computed` are their vectors, None to compute them now.  Raises InvalidInputs if the prompt
    lacks tokens for them, ServingError if they cannot be computed.
    """
    positions: dict[int, list[int]] = {}  # of each image or sound, by its number
    rows, axes = [], None
    for kind, each in reader.by_kind.items():
        media = {i: image for i, image in enumerate(images) if image.kind == kind}
        if not media:
            continue
        row = each.prompt_format
        rows.append(row)
        placeholders = _placeholders(each)
        tokens = [i for i, token_id in enumerate(ids) if token_id in placeholders]
        positions |= _divided(tokens, media, kind)
        if row.merge_size:
            grids = [grid_and_interval(to_arrays(x), row.merge_size) for x in media.values()]
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


def _placeholders(reader: PromptImageReader | SoundReader) -> set[int]:
    """Return the tokens that stand for images or sounds, and for videos if they have their own."""
    row = reader.prompt_format
    tokens = {row.token_id, *(row.frame[1:] if row.ends_in_vector else ())}
    if isinstance(reader, PromptImageReader) and reader.takes_videos:
        video = reader.prompt_format.video
        if video is not None and video.token_id is not None:
            tokens.add(video.token_id)
    return tokens


def _divided(
    tokens: list[int], media: Mapping[int, PreparedImage], kind: str
) -> dict[int, list[int]]:
    """Return which of `tokens` stand for each of the media of a kind.

    Raises InvalidInputs if these are too few or too many.
    """
    count = sum(image.count for image in media.values())
    if len(tokens) != count:
        raise InvalidInputs(
            f"the prompt has {len(tokens)} {kind} tokens, expected {count} for its {kind}s"
        )
    remaining = iter(tokens)
    return {number: list(islice(remaining, image.count)) for number, image in media.items()}
