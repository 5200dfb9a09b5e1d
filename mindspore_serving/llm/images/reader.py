"""Pictures of a request read: fetched, decoded, resized to what a model's image processor makes.

Vectors are made of that elsewhere (`tower`).  Threads may share a reader.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mindspore_serving import extras
from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import InvalidField, InvalidInputs, StartError
from mindspore_serving.llm.checkpoint.model_files import find_config
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.decoding import decode_file
from mindspore_serving.llm.images.fetching import FetchLimits, fetch
from mindspore_serving.llm.images.forms import PictureForm, find_form
from mindspore_serving.llm.images.messages import ImageSource
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

PROCESSORS = ("preprocessor_config.json", "processor_config.json")


class MessageArray(msgspec.Struct, frozen=True, array_like=True):
    """An array in a message."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes

    @classmethod
    def of(cls, array: "npt.NDArray[Any]") -> "MessageArray":
        return cls(array.dtype.str, array.shape, np.ascontiguousarray(array).tobytes())

    def array(self) -> "npt.NDArray[Any]":
        return np.frombuffer(self.content, self.dtype).reshape(self.shape)


class Picture(msgspec.Struct, frozen=True, array_like=True):
    """A picture that was read: a hash of its file, its text in the prompt, how many vectors it has,
    and what those are made of.
    """

    digest: bytes
    text: str
    count: int
    inputs: dict[str, MessageArray]


class PictureReader:
    """Reads for one model.

    Args:
        directory: of the model, with the configuration of its image processor.
        form: how it writes pictures.
        names: the texts of the token that stands for a vector, and of those of `form.frame`.
        config: the limits.

    Raises StartError: no library, no or a broken processor.
    """

    def __init__(
        self, directory: Path, form: PictureForm, names: Sequence[str], config: EngineConfig
    ) -> None:
        self.form = form
        self.token = names[1] if form.frame else names[0]  # what templates write
        self._names = names
        self._config = config
        self._processor = open_processor(directory)

    def read(self, sources: Sequence[ImageSource]) -> list[Picture]:
        """Raises InvalidField naming the picture: too many, not allowed, too large, broken."""
        most = self._config.max_images
        if len(sources) > most:
            accepted = f"at most {most}" if most else "none: the model reads text alone here"
            place, _, inside = sources[0].place.partition("[")
            has = "have" if inside else "has"
            raise InvalidField(place, f"{has} {len(sources)} pictures, expected {accepted}")
        return [self._read(source) for source in sources]

    def expand(self, text: str, pictures: Sequence[Picture]) -> str:
        """`text` with the pictures' own in place of the tokens that stand for them.  Raises
        InvalidField if it has more or fewer such tokens.
        """
        pieces = text.split(self.token)
        if len(pieces) != len(pictures) + 1:
            raise InvalidField(
                "messages",
                f"have {len(pictures)} pictures and {len(pieces) - 1} times {self.token!r}, which "
                "stands for one: leave it out of texts",
            )
        texts = [picture.text for picture in pictures]
        return "".join(a + b for a, b in zip(pieces, [*texts, ""], strict=True))

    def _read(self, source: ImageSource) -> Picture:
        try:
            data = _load(source.url, self._config)
            image = decode_file(data, self._config)
            return self._prepare(image, blake2b(data, digest_size=16).digest())
        except InvalidInputs as error:
            raise InvalidField(source.place, str(error)) from None

    def _prepare(self, image: Any, digest: bytes) -> Picture:
        form = self.form
        try:
            made = self._processor([image], return_tensors="np", **form.options)
            text = form.write(self._names, form.count, made)
        except MemoryError:  # the picture grows, as a very thin one does
            raise
        except Exception as error:  # the library has no errors of its own
            raise InvalidInputs(f"cannot be prepared: {error_text(error)}") from error
        arrays = {name: MessageArray.of(x) for name, x in made.items() if isinstance(x, np.ndarray)}
        return Picture(digest, text, text.count(self._names[0]), arrays)


def open_reader(
    directory: Path, tokenizer: Tokenizer | None, config: EngineConfig
) -> PictureReader | None:
    """None for a model that takes no pictures, or is not to.  Raises StartError as a reader."""
    form = find_form(find_config(directory))
    if form is None or tokenizer is None or not config.max_images:
        return None
    names = []
    for token_id in (form.token_id, *form.frame):
        names.append(tokenizer.token(token_id) or "")
        if not names[-1]:
            raise StartError(f"config.json has {token_id} for a token of images, which is none")
    return PictureReader(directory, form, names, config)


def open_processor(directory: Path) -> Any:
    """The image processor of the model in `directory`.  Raises StartError."""
    if not has_processor(directory):
        raise StartError(f"{directory} has no {PROCESSORS[0]}, by which images are resized")
    try:
        import PIL  # noqa: F401
        import transformers
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, "a model that takes images")) from error
    try:
        return transformers.AutoImageProcessor.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False, backend="pil"
        )
    except Exception as error:  # the library has no errors of its own
        raise StartError(
            f"{directory / PROCESSORS[0]} cannot be used: {error_text(error)}"
        ) from error


def has_processor(directory: Path) -> bool:
    return any((directory / name).is_file() for name in PROCESSORS)


def _load(url: str, config: EngineConfig) -> bytes:
    """The file.  Raises InvalidInputs."""
    if url[:5].lower() != "data:":
        seconds = config.preparation_timeout
        return fetch(url, FetchLimits(config.image_hosts, config.max_image_bytes, seconds))
    head, comma, content = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise InvalidInputs('is no data URI of base64, expected "data:image/png;base64,..."')
    if len(content) * 3 // 4 > config.max_image_bytes + 2:
        raise InvalidInputs(
            f"has {len(content) * 3 // 4:,} bytes, expected at most {config.max_image_bytes:,}"
        )
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInputs(f"is no base64: {error}") from None


def to_arrays(picture: Picture) -> Mapping[str, "npt.NDArray[Any]"]:
    return {name: array.array() for name, array in picture.inputs.items()}
