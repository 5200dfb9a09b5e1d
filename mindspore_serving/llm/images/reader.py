"""Images of a request: fetched, decoded and resized as a model's image processor does.

Their vectors are computed elsewhere (`tower`). Threads may share a reader.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mindspore_serving import extras
from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import InvalidField, InvalidInputs, StartError
from mindspore_serving.llm.checkpoint.gguf.files import is_gguf
from mindspore_serving.llm.checkpoint.model_files import find_config, read_json
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.descriptions.config_types import MAX_INT
from mindspore_serving.llm.descriptions.settings import flattened
from mindspore_serving.llm.images.decoding import decode_file
from mindspore_serving.llm.images.loading import check_counts, load_file
from mindspore_serving.llm.images.messages import IMAGE, PHRASES, MediaSource
from mindspore_serving.llm.images.native_video import NativeVideo, read_size
from mindspore_serving.llm.images.prompt_format import ImagePromptFormat
from mindspore_serving.llm.images.prompt_formats import find_prompt_format
from mindspore_serving.llm.images.qwen_formats import check_tokens
from mindspore_serving.llm.images.video import VideoFile
from mindspore_serving.llm.models.dual import find_dual
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

Options: TypeAlias = Mapping[str, Any] | None
PROCESSORS = ("preprocessor_config.json", "processor_config.json")


class MessageArray(msgspec.Struct, frozen=True, array_like=True):
    """An array in a message between processes."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes

    @classmethod
    def of(cls, array: "npt.NDArray[Any]") -> "MessageArray":
        return cls(array.dtype.str, array.shape, np.ascontiguousarray(array).tobytes())

    def array(self) -> "npt.NDArray[Any]":
        return np.frombuffer(self.content, self.dtype).reshape(self.shape)


class PreparedImage(msgspec.Struct, frozen=True, array_like=True):
    """An image after its processor, or a sound after its feature extractor, by `kind`.

    `digest` hashes its file, `text` stands for it in the prompt, `count` is the number of its
    vectors, and `inputs` are the arrays from which a tower computes them.
    """

    digest: bytes
    text: str
    count: int
    inputs: dict[str, MessageArray]
    kind: str = IMAGE


class ImageReader:
    """Reads images that stand by themselves, for a model that embeds them.

    Args:
        directory: of the model, with the configuration of its image processor.
        config: the limits.

    Raises:
        StartError: a library is missing, or the processor is missing or broken.
    """

    _mark_of_shared = b""  # in the hash of an image that is not alone, if others change its vectors

    def __init__(self, directory: Path, config: EngineConfig) -> None:
        self._config = config
        self._processor = open_processor(directory)

    def read(self, sources: Sequence[MediaSource]) -> list[PreparedImage]:
        """Fetch, decode and prepare images.

        Raises InvalidField, naming the image: too many, not allowed, too large, or broken.
        """
        check_counts(sources, self._config)
        return [self.read_image(source, is_alone=len(sources) == 1) for source in sources]

    def read_image(self, source: MediaSource, *, is_alone: bool) -> PreparedImage:
        """Fetch, decode and prepare an image.  Raises InvalidField."""
        try:
            data = load_file(source.url, self._config.max_image_bytes, self._config)
            image = decode_file(data, self._config)
            return self.prepare(image, digest_of(data), is_alone=is_alone)
        except InvalidInputs as error:
            raise InvalidField(source.field, str(error)) from None

    def prepare(
        self, image: Any, digest: bytes, options: Options = None, *, is_alone: bool = False
    ) -> PreparedImage:
        """Prepare a decoded image; `options` are arguments of its processor, None: the usual ones.

        Several images of a request may be prepared otherwise than one that `is_alone`.  Raises
        InvalidInputs.
        """
        try:
            processed = self._process(image, options, is_alone=is_alone)
            text = self._write(processed)
        except MemoryError:  # a very thin image is enlarged beyond the memory
            raise
        except Exception as error:  # the library has no errors of its own
            raise InvalidInputs(f"cannot be prepared: {error_text(error)}") from error
        inputs = {n: MessageArray.of(x) for n, x in processed.items() if isinstance(x, np.ndarray)}
        if not is_alone:
            digest += self._mark_of_shared
        return PreparedImage(digest, text, self._count(text), inputs)

    def _process(self, image: Any, options: Options, *, is_alone: bool) -> Mapping[str, Any]:
        processed: Mapping[str, Any] = self._processor(
            [image], return_tensors="np", **(options or {})
        )
        return processed

    def _write(self, processed: Mapping[str, Any]) -> str:
        return ""

    def _count(self, text: str) -> int:
        return 1


class PromptImageReader(ImageReader):
    """Reads the images in prompts for one model.

    Args:
        directory: of the model, with the configuration of its image processor.
        prompt_format: how the model writes images.
        names: texts of the placeholder token, and of the tokens of `prompt_format.frame`.
        config: the limits.
        video_name: text of the placeholder token of videos; "" if the model takes none.

    Raises:
        StartError: a library is missing, or the processor is missing or broken.
    """

    def __init__(
        self,
        directory: Path,
        prompt_format: ImagePromptFormat,
        names: Sequence[str],
        config: EngineConfig,
        video_name: str = "",
    ) -> None:
        super().__init__(directory, config)
        self.prompt_format = prompt_format
        self.token = names[1 if prompt_format.is_framed else 0]  # templates write it for an image
        self._mark_of_shared = b"shared" if prompt_format.process_shared else b""
        self._names = names
        trained = flattened(find_config(directory)).get("max_position_embeddings")
        self._max_tokens = config.max_model_len or trained or MAX_INT
        self._video, self._video_name = None, video_name
        if prompt_format.video is not None and video_name:
            size = read_size(directory, self._processor, prompt_format.video)
            self._video = NativeVideo(self._processor, prompt_format.video, size, self._max_tokens)

    @property
    def takes_videos(self) -> bool:
        """Tell whether `prepare_video` prepares videos, which otherwise are images."""
        return self._video is not None

    def prepare_video(self, video: VideoFile, name: bytes) -> tuple[list[str], list[PreparedImage]]:
        """Return the texts around the pieces of a video, and the pieces; `name` hashes its file.

        Raises InvalidInputs.
        """
        assert self._video is not None
        parts, last = self._video.prepare(video.frames(), video.max_frames, video.seconds)
        images = [
            PreparedImage(
                digest_of(name, b"video", struct.pack("<q", video.max_frames), part.key),
                self._video_name * part.count,
                part.count,
                {label: MessageArray.of(array) for label, array in part.inputs.items()},
            )
            for part in parts
        ]
        return [*(part.text_before for part in parts), last], images

    def text_of(self, index: int, image: PreparedImage) -> str:
        """Return the text of an image that is at `index` of the images in its prompt."""
        numbers = self.prompt_format.numbers
        if not numbers or not getattr(self._processor, "use_image_id", True):
            return image.text
        return f"{numbers[0]}{index}{numbers[1]}{image.text}"

    def _process(self, image: Any, options: Options, *, is_alone: bool) -> Mapping[str, Any]:
        prompt_format = self.prompt_format
        if merge_size := prompt_format.merge_size:
            check_tokens(self._processor, image.size, merge_size, self._max_tokens)
        if prompt_format.process_shared and not is_alone:
            return prompt_format.process_shared(self._processor, image)
        return super()._process(image, options or prompt_format.options, is_alone=is_alone)

    def _write(self, processed: Mapping[str, Any]) -> str:
        prompt_format = self.prompt_format
        return prompt_format.write(self._names, prompt_format.count, processed)

    def _count(self, text: str) -> int:
        return text.count(self._names[0]) + self.prompt_format.ends_in_vector


def expand(text: str, token: str, texts: Sequence[str], kind: str) -> str:
    """Return `text` with `texts`, those of all media of a kind, in place of each `token`.

    Raises InvalidField if the text has more or fewer such tokens than media.
    """
    pieces = text.split(token)
    if len(pieces) != len(texts) + 1:
        article, _, name = PHRASES[kind].partition(" ")
        raise InvalidField(
            "messages",
            f"have {len(texts)} {name}s and {len(pieces) - 1} times {token!r}, the "
            f"placeholder of {article} {name}: "
            + (
                "leave it out of texts"
                if len(pieces) > len(texts)
                else "the chat template shows none in such a message, send them as the user"
            ),
        )
    return "".join(a + b for a, b in zip(pieces, [*texts, ""], strict=True))


def digest_of(*contents: bytes) -> bytes:
    """Return the name of an image: a hash of its file, and of its place in it."""
    return blake2b(b"".join(contents), digest_size=16).digest()


def open_reader(
    directory: Path, tokenizer: Tokenizer | None, config: EngineConfig
) -> ImageReader | None:
    """Open the reader of a model, None if it takes no images or `max_images` is 0.

    It is a `PromptImageReader` if images are parts of prompts.  Raises StartError as that does, or
    for an unknown placeholder token.
    """
    fields = find_config(directory)
    if find_dual(fields) is not None and config.max_images:
        return ImageReader(directory, config)
    prompt_format = find_prompt_format(fields)
    if prompt_format is None or tokenizer is None or not config.max_images:
        return None
    names = []
    for token_id in (prompt_format.token_id, *prompt_format.frame):
        names.append(tokenizer.token(token_id) or "")
        if not names[-1]:
            raise StartError(f"config.json names image token {token_id}, which the tokenizer lacks")
    for word in prompt_format.words:
        if tokenizer.token_id(word) is None:
            raise StartError(f"the tokenizer has no token {word!r}, which prompts with images have")
    video_name = names[0]
    if prompt_format.video is not None and prompt_format.video.token_id is not None:
        video_name = tokenizer.token(prompt_format.video.token_id) or ""
    return PromptImageReader(directory, prompt_format, names, config, video_name)


def open_processor(directory: Path) -> Any:
    """Open the image processor of the model in `directory`.  Raises StartError."""
    if is_gguf(directory):
        with TemporaryDirectory() as files:
            content = json.dumps(read_json(directory / PROCESSORS[0]))
            (Path(files) / PROCESSORS[0]).write_text(content)
            return open_processor(Path(files))
    if not has_processor(directory):
        raise StartError(f"{directory} has no {PROCESSORS[0]}, which says how images are resized")
    try:
        import PIL  # noqa: F401
        import transformers
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, "a model that takes images")) from error
    try:
        return transformers.AutoImageProcessor.from_pretrained(
            directory,
            local_files_only=True,
            trust_remote_code=False,
            backend="pil",
            class_info_file=None,  # of OneFormer, for training: it would be downloaded
        )
    except Exception as error:  # the library has no errors of its own
        raise StartError(
            f"{directory / PROCESSORS[0]} cannot be used: {error_text(error)}"
        ) from error


def process_image(processor: Any, image: Any) -> dict[str, "npt.NDArray[Any]"]:
    """Return the inputs of a vision tower for an image that stands by itself.

    Raises InvalidInputs for an image that the processor does not accept.
    """
    processed = run_processor(processor, image)
    return {name: array for name, array in processed.items() if isinstance(array, np.ndarray)}


def run_processor(processor: Any, image: Any) -> Mapping[str, Any]:
    """Return what `processor` makes of an image.  Raises InvalidInputs if it does not accept it."""
    try:
        processed: Mapping[str, Any] = processor([image], return_tensors="np")
        return processed
    except MemoryError:  # a very thin image is enlarged beyond the memory
        raise
    except Exception as error:  # the library has no errors of its own
        raise InvalidInputs(f"image cannot be prepared: {error_text(error)}") from error


def has_processor(directory: Path) -> bool:
    """Return whether the directory has the configuration of an image processor."""
    return any((directory / name).is_file() for name in PROCESSORS)


def to_arrays(image: PreparedImage) -> Mapping[str, "npt.NDArray[Any]"]:
    """Return the inputs of a vision tower as arrays, by name."""
    return {name: array.array() for name, array in image.inputs.items()}
