"""The images of one request, in the text of its prompt and in its tokens."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from mindspore_serving.errors import InvalidField, InvalidInputs
from mindspore_serving.llm.engine.images import PromptImages
from mindspore_serving.llm.images.messages import MARKDOWN, Message, find_images, to_marks
from mindspore_serving.llm.images.reader import ImageReader, PreparedImage
from mindspore_serving.llm.images.tower import Tower

Messages: TypeAlias = Sequence[Message]


class ImagePrompt:
    """Those of `messages`, or of the text `markdown`, read by `reader`, which is None for a model
    that takes none.

    Raises InvalidField naming an image that cannot be used.
    """

    def __init__(
        self, reader: ImageReader | None, messages: Messages | None, markdown: str = ""
    ) -> None:
        sources = find_images(messages or (), markdown)
        if sources and reader is None:
            raise InvalidField(sources[0].field, "is an image: the model reads no images")
        self._reader, self._markdown = reader, markdown
        self._read: dict[str, PreparedImage] = {}
        if sources and reader is not None:
            images = reader.read(sources)
            self._read = {one.url: two for one, two in zip(sources, images, strict=True)}

    @property
    def token(self) -> str:
        """What stands for an image in a text; "" if there are none."""
        return self._reader.token if self._reader is not None and self._read else ""

    def marked(self, messages: Messages) -> list[dict[str, Any]]:
        """As a chat template takes them."""
        return [dict(one) for one in to_marks(messages)]

    def of(self, messages: Messages | None) -> list[PreparedImage]:
        """The images of some of the messages, in order; or of the text."""
        return [self._read[source.url] for source in find_images(messages or (), self._markdown)]

    def expand_markdown(self, text: str) -> str:
        """`text` with those of its images."""
        if not self._read:
            return text
        return MARKDOWN.sub(lambda found: self._read[found[1]].text, text)

    def expand(self, text: str, messages: Messages) -> str:
        """The text of some of the messages, with those of its images."""
        if self._reader is None or not self._read:
            return text
        return self._reader.expand(text, self.of(messages))


def place_images(
    reader: ImageReader, tower: Tower, ids: Sequence[int], images: Sequence[PreparedImage]
) -> PromptImages:
    """`images` as the engine takes them, in the prompt `ids`.  Raises InvalidInputs if the prompt
    has not the tokens for them, ServingError if they cannot be computed.
    """
    places = [
        place for place, token_id in enumerate(ids) if token_id == reader.prompt_format.token_id
    ]
    count = sum(image.count for image in images)
    if len(places) != count:
        raise InvalidInputs(f"the prompt has {len(places)} tokens for {count} vectors of images")
    both_ways = reader.prompt_format.is_bidirectional
    return PromptImages(places, tower.compute(images), is_bidirectional=both_ways)
