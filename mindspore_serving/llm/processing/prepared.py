"""Results of preparing a request, as messages between a worker and the child that prepares it.

Tells which requests are too small to need a child.  Knows neither processes nor a tokenizer.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from mindspore_serving.core.llm_messages import (
    METHODS,
    Detokenize,
    Generate,
    LLMRequest,
    Refused,
    RequestRefused,
    Tokenize,
    decode_request,
    encode_request,
    to_refused,
)
from mindspore_serving.core.prefill_messages import Prefill
from mindspore_serving.core.reading_messages import DescribeTokenizer, Embed, Score
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.core.speech_messages import Speak, Transcribe
from mindspore_serving.errors import ServingError, from_code, printable
from mindspore_serving.llm.images.messages import has_media
from mindspore_serving.llm.images.reader import PreparedImage
from mindspore_serving.llm.processing.answer_format import AnswerFormat

SMALL = 8192  # characters, and `_VALUE` for each value: prepared in a few milliseconds
SMALL_BAD_WORDS = 1024  # characters, and of texts with a bias: each is tokenized, words twice
_SIZE = 4  # bytes of a length
_VALUE = 4  # characters that a value counts for, beside its own


class PreparedPrompt(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A `Generate` that was read; `text` is the prompt's, None if it was token ids."""

    text: str | None
    ids: list[int]
    params: SamplingParams
    answer_format: AnswerFormat
    bad_words_ids: list[list[int]] | None  # None without a tokenizer
    images: list[PreparedImage] = []
    computed: Any = None  # by the tower, in the worker


class PreparedTexts(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Tokens of an `Embed` or a `Score`.

    `types` tell the two texts of pairs apart, and are empty for single texts.  `images` are by
    place; they have no tokens.  `images_in_texts` are those of each text, whose tokens stand for
    them.
    """

    ids: list[list[int]]
    types: list[list[int]] = []
    images: dict[int, PreparedImage] = {}
    images_in_texts: list[list[PreparedImage]] = []


class PreparedEvent(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Encoded event that answers any other request."""

    event: msgspec.Raw


class PreparationFailed(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Error of a request that could not be prepared; `refused` if the request is to blame."""

    code: int
    text: str
    refused: Refused | None = None

    def to_error(self) -> ServingError:
        """Return the error to raise."""
        return (
            from_code(self.code, self.text)
            if self.refused is None
            else RequestRefused(self.refused)
        )


PreparationResult = PreparedPrompt | PreparedTexts | PreparedEvent | PreparationFailed

_METHODS = list(METHODS)
encode_result = msgspec.msgpack.Encoder().encode
_decoder: "msgspec.msgpack.Decoder[PreparationResult]" = msgspec.msgpack.Decoder(PreparationResult)


def decode_result(data: bytes) -> PreparedPrompt | PreparedTexts | PreparedEvent:
    """Decode a result.  Raises the error of a `PreparationFailed`."""
    work = _decoder.decode(data)
    if isinstance(work, PreparationFailed):
        raise work.to_error()
    return work


def to_failed(error: ServingError) -> PreparationFailed:
    """Return `error` as a message."""
    return PreparationFailed(error.code, printable(str(error)), to_refused(error))


def encode_job(request: LLMRequest, request_id: str = "") -> bytes:
    """Encode a request of any kind: the index of its method, its id in logs, and the request."""
    index = next(n for n, kind in enumerate(METHODS.values()) if kind is type(request))
    name = request_id.encode()
    return bytes([index]) + len(name).to_bytes(_SIZE, "little") + name + encode_request(request)


def decode_job(job: bytes) -> tuple[LLMRequest, str]:
    """Return the request, and its id in logs."""
    begin = 1 + _SIZE
    end = begin + int.from_bytes(job[1:begin], "little")
    return decode_request(_METHODS[job[0]], memoryview(job)[end:]), job[begin:end].decode()


def is_small(request: LLMRequest) -> bool:
    """Return whether preparing `request` without its grammar takes a few milliseconds at most.

    Token ids that need no text cost nothing, so any number of them is small.
    """
    if isinstance(request, DescribeTokenizer | Transcribe | Speak | Prefill):
        return True
    if isinstance(request, Detokenize):
        return len(request.token_ids) <= SMALL
    if isinstance(request, Generate) and request.chat_template:
        return False  # a template of a client may take any time
    if has_images(request):
        return False
    if isinstance(request, Embed):
        prompts = [text for text in request.prompts if isinstance(text, str)]
        return _room(SMALL, [prompts, request.messages]) >= 0
    if isinstance(request, Score):
        return request.num_characters + _VALUE * len(request.texts) <= SMALL
    texts: list[Any] = [request.messages, request.tools, request.template_options]
    if isinstance(request.prompt, str):
        texts.append(request.prompt)
    if isinstance(request, Generate):
        texts += [request.suffix, request.files]
        words = [*request.params.bad_words, *request.params.text_bias]
        if words and _room(SMALL_BAD_WORDS, words) < 0:
            return False
    return _room(SMALL, texts) >= 0


def has_images(request: LLMRequest) -> bool:
    """Return whether there are files in its messages, images in its text, or images to embed."""
    if isinstance(request, Embed):
        return bool(request.images) or has_media(request.messages)
    markdown = request.markdown if isinstance(request, Generate) else ""
    messages = request.messages if isinstance(request, Generate | Tokenize) else None
    return has_media(messages or (), markdown)


def _room(room: int, value: Any) -> int:
    """Return how much of `room` is left after `value`; stops counting once nothing is left."""
    room -= _VALUE
    if isinstance(value, str):
        return room - len(value)
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if room >= 0:
                room = _room(room - len(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            if room >= 0:
                room = _room(room, inner)
    return room
