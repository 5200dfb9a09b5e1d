"""Whisper checkpoints of whisper.cpp, "ggml-base.bin": sizes, vocabulary and tensors in one file.

The tensors are views of the mapped file, those of blocks as in GGUF files. The vocabulary has the
bytes of each token by rank, and no special tokens: they follow it in the order of Whisper's
reference. Every size is checked before anything is read.
"""

import struct
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.file_check import WHISPER_GGML as MAGIC
from mindspore_serving.llm.checkpoint.gguf.reader import Blocks
from mindspore_serving.llm.checkpoint.gguf.stored import stored
from mindspore_serving.llm.checkpoint.gguf.tokenizer import added_token, tokenizer_of
from mindspore_serving.llm.checkpoint.gguf.types import TENSOR_TYPES, unsupported_type
from mindspore_serving.llm.checkpoint.ranks import SPELLING, TokenRanks
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor

_SIZES = (
    "vocab_size", "max_source_positions", "d_model", "encoder_attention_heads", "encoder_layers",
    "max_target_positions", "text_width", "decoder_attention_heads", "decoder_layers",
    "num_mel_bins", "file_type",
)  # fmt: skip
_MAX_SIZE, _MAX_TOKEN, _MAX_NAME, _MAX_DIMS, _MAX_TENSORS = 1 << 20, 1024, 512, 4, 20_000
_ENGLISH_TOKENS = 50_256  # of text, of models that know English alone; others have one more
_NUM_TIMES = 1501
_NUM_MARKS = 8  # special tokens beside languages and times
_CODES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th "
    "ur hr bg lt la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr "
    "pa si km sn yo so af oc ka be tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt "
    "haw ln ha ba jw su yue"
)
LANGUAGES = _CODES.split()  # in the order of their tokens
_BEFORE, _BEHIND = ("endoftext", "startoftranscript"), (
    "translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps",
)  # fmt: skip

_RENAMED = (
    ("attn_ln", "self_attn_layer_norm"), ("cross_attn_ln", "encoder_attn_layer_norm"),
    ("attn.query", "self_attn.q_proj"), ("attn.key", "self_attn.k_proj"),
    ("attn.value", "self_attn.v_proj"), ("attn.out", "self_attn.out_proj"),
    ("cross_attn.query", "encoder_attn.q_proj"), ("cross_attn.key", "encoder_attn.k_proj"),
    ("cross_attn.value", "encoder_attn.v_proj"), ("cross_attn.out", "encoder_attn.out_proj"),
    ("mlp_ln", "final_layer_norm"), ("mlp.0", "fc1"), ("mlp.2", "fc2"),
)  # fmt: skip
_IN_LAYERS = dict(_RENAMED)
_OUTSIDE = {
    "encoder.positional_embedding": "encoder.embed_positions.weight",
    "encoder.ln_post.weight": "encoder.layer_norm.weight",
    "encoder.ln_post.bias": "encoder.layer_norm.bias",
    "decoder.positional_embedding": "decoder.embed_positions.weight",
    "decoder.token_embedding.weight": "decoder.embed_tokens.weight",
    "decoder.ln.weight": "decoder.layer_norm.weight",
    "decoder.ln.bias": "decoder.layer_norm.bias",
}


class WhisperFile:
    """A mapped file: `config` with Hugging Face's keys, `tokenizer` as tokenizer.json, `tensors`.

    Raises StartError: a file of another kind, one that ends early, or a type that is not supported.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r").view(np.ndarray)
        except (OSError, ValueError) as error:
            raise StartError(f"{path} cannot be read: {error}") from None
        self._at = 0
        if self._take(4).tobytes() != MAGIC:
            raise StartError(f"{path} does not begin as a ggml file of Whisper")
        sizes = {name: self._number(name, _MAX_SIZE) for name in _SIZES}
        if sizes.pop("text_width") != sizes["d_model"]:
            raise StartError(f"{path} has text of another width than sound")
        del sizes["file_type"]
        self._skip_filters(sizes["num_mel_bins"])
        self.tokenizer = self._read_tokenizer(sizes["vocab_size"])
        self.tensors = dict(self._read_tensors())
        width = "model.{}.layers.0.fc1.weight"
        self.config: dict[str, Any] = {
            "model_type": "whisper",
            "architectures": ["WhisperForConditionalGeneration"],
            **sizes,
            "encoder_ffn_dim": self._tensor(width.format("encoder")).shape[0],
            "decoder_ffn_dim": self._tensor(width.format("decoder")).shape[0],
        }

    def _tensor(self, name: str) -> StoredTensor:
        if name not in self.tensors:
            raise StartError(f"{self.path} has no tensor for {name!r}")
        return self.tensors[name]

    def _skip_filters(self, num_bins: int) -> None:
        """Skip the filters of the spectrum, which `sounds.features` computes."""
        rows, columns = (self._number(name, _MAX_SIZE) for name in ("filters", "bins of a filter"))
        if rows != num_bins:
            raise StartError(f"{self.path} has {rows} filters, expected {num_bins}")
        self._take(4 * rows * columns)

    def _read_tokenizer(self, vocab_size: int) -> dict[str, Any]:
        num_tokens = self._number("tokens", _MAX_SIZE)
        tokens = [
            "".join(SPELLING[byte] for byte in self._take(self._number("token", _MAX_TOKEN, 0)))
            for _ in range(num_tokens)
        ]
        num_text, special = _special_tokens(vocab_size)
        if len(tokens) < num_text or len(set(tokens[:num_text])) < num_text:
            raise StartError(
                f"{self.path} has {len(tokens)} tokens, expected {num_text} different ones of text "
                f"in a vocabulary of {vocab_size}"
            )
        built = tokenizer_of(TokenRanks(self.path, "gpt-2", tokens[:num_text]))
        added = [added_token(num_text + n, text, is_special=True) for n, text in enumerate(special)]
        return {**built, "added_tokens": [*built["added_tokens"], *added]}

    def _read_tensors(self) -> list[tuple[str, StoredTensor]]:
        tensors: list[tuple[str, StoredTensor]] = []
        while self._at < len(self._file):
            if len(tensors) == _MAX_TENSORS:
                raise StartError(f"{self.path} has over {_MAX_TENSORS} tensors")
            rank = self._number("sizes of a tensor", _MAX_DIMS)
            length = self._number("bytes of a name", _MAX_NAME)
            kind = self._number("type of a tensor", _MAX_SIZE, 0)
            shape = tuple(self._number("size", _MAX_SIZE) for _ in range(rank))[::-1]
            name = self._take(length).tobytes().decode("utf-8", "replace")
            row = TENSOR_TYPES.get(kind)
            if row is None or not row.is_supported:
                raise unsupported_type(f"{self.path}: {name!r}", kind)
            if shape[-1] % row.block:
                raise StartError(f"{self.path}: {name!r} has rows of {shape[-1]}, not of blocks")
            row_bytes = shape[-1] // row.block * row.num_bytes
            content = self._take(prod(shape[:-1]) * row_bytes).reshape(-1, row_bytes)
            if name.endswith(".bias"):  # of a convolution: a column
                shape = (prod(shape),)
                content = content.reshape(1, -1)
            tensors.append((_renamed(name), stored(Blocks(row.name, shape, content))))
        return tensors

    def _number(self, name: str, at_most: int, at_least: int = 1) -> int:
        (value,) = struct.unpack("<i", self._take(4).tobytes())
        if not at_least <= value <= at_most:
            expected = f"{at_least} to {at_most}"
            raise StartError(f"{self.path} is broken: {name} is {value}, expected {expected}")
        return int(value)

    def _take(self, size: int) -> npt.NDArray[np.uint8]:
        end = self._at + size
        if end > len(self._file):
            missing = end - len(self._file)
            raise StartError(f"{self.path} is truncated: {missing} bytes are missing")
        taken, self._at = self._file[self._at : end], end
        return taken


def _special_tokens(vocab_size: int) -> tuple[int, list[str]]:
    """Return the number of tokens of text, and the special ones that follow."""
    num_text = _ENGLISH_TOKENS
    if vocab_size > _ENGLISH_TOKENS + _NUM_MARKS + len(LANGUAGES) - 1 + _NUM_TIMES:
        num_text += 1
    num_languages = vocab_size - num_text - _NUM_MARKS - _NUM_TIMES
    if not 0 < num_languages <= len(LANGUAGES):
        raise StartError(f"a vocabulary of {vocab_size} tokens is none of Whisper's")
    names = (*_BEFORE, *LANGUAGES[:num_languages], *_BEHIND)
    return num_text, [f"<|{name}|>" for name in names]


def _renamed(name: str) -> str:
    """Return Hugging Face's name of a tensor."""
    if name in _OUTSIDE:
        return f"model.{_OUTSIDE[name]}"
    stack, _, rest = name.partition(".blocks.")
    if not rest:
        return f"model.{name}"  # of a convolution
    layer, _, rest = rest.partition(".")
    part, _, kind = rest.rpartition(".")
    return f"model.{stack}.layers.{layer}.{_IN_LAYERS.get(part, part)}.{kind}"
