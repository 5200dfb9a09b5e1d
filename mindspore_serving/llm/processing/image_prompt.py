"""Images of one request, in the text of its prompt and in its tokens."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from mindspore_serving.errors import InvalidField, InvalidInputs
from mindspore_serving.llm.engine.prompt_images import PromptImages
from mindspore_serving.llm.images.messages import MARKDOWN, Message, find_images, to_marks
from mindspore_serving.llm.images.reader import PreparedImage, PromptImageReader
from mindspore_serving.llm.images.tower import Tower

Messages: TypeAlias = Sequence[Message]


class ImagePrompt:
    """Images of `messages`, or of the text `markdown`, read by `reader`.

    `reader` is None for a model that takes no images.  Raises InvalidField naming an image that
    cannot be used.
    """

    def __init__(
        self, reader: PromptImageReader | None, messages: Messages | None, markdown: str = ""
    ) -> None:
        sources = find_images(messages or (), markdown)
        if sources and reader is None:
            raise InvalidField(sources[0].field, "is an image, but the model reads no images")
        self._reader, self._markdown = reader, markdown
        self._read: dict[str, PreparedImage] = {}
        if sources and reader is not None:
            images = reader.read(sources)
            pairs = zip(sources, images, strict=True)
            self._read = {source.url: image for source, image in pairs}

    @property
    def token(self) -> str:
        """Text that stands for an image; "" if there are none."""
        return self._reader.token if self._reader is not None and self._read else ""

    def marked(self, messages: Messages) -> list[dict[str, Any]]:
        """Return the messages with marks for images, as a chat template takes them."""
        return [dict(message) for message in to_marks(messages)]

    def of(self, messages: Messages | None) -> list[PreparedImage]:
        """Return the images of some of the messages, in order; or of the text."""
        return [self._read[source.url] for source in find_images(messages or (), self._markdown)]

    def expand_markdown(self, text: str) -> str:
        """Return `text` with the texts of its images in place of their links."""
        if not self._read:
            return text
        return MARKDOWN.sub(lambda match: self._read[match[1]].text, text)

    def expand(self, text: str, messages: Messages) -> str:
        """Return the text of some of the messages with the texts of its images."""
        if self._reader is None or not self._read:
            return text
        return self._reader.expand(text, self.of(messages))


def to_prompt_images(
    reader: PromptImageReader, tower: Tower, ids: Sequence[int], images: Sequence[PreparedImage]
) -> PromptImages:
    """Return `images` as the engine takes them, at their positions in the prompt `ids`.

    Raises InvalidInputs if the prompt lacks tokens for them, ServingError if they cannot be
    computed.
    """
    positions = [
        index for index, token_id in enumerate(ids) if token_id == reader.prompt_format.token_id
    ]
    count = sum(image.count for image in images)
    if len(positions) != count:
        raise InvalidInputs(
            f"the prompt has {len(positions)} image tokens, expected {count} for its images"
        )
    prompt_format = reader.prompt_format
    return PromptImages(
        positions, tower.compute(images),
        is_bidirectional=prompt_format.is_bidirectional, fill_id=prompt_format.fill_id,
    )  # fmt: skip
