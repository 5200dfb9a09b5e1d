"""Conversion of SentencePiece's `tokenizer.model` to the tokenizer.json of `tokenizers`.

The file is read into the metadata that GGUF files have of such a tokenizer. It is a protobuf
message, ModelProto, whose relevant fields are described here.
"""

from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from mindspore_serving import file_check
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint import chatglm, marian, vocabularies
from mindspore_serving.llm.checkpoint.gguf.tokenizer import (
    NORMAL,
    SPACE,
    USER,
    Json,
    added_token,
    tokenizer_of,
)
from mindspore_serving.llm.checkpoint.model_files import read_optional_json
from mindspore_serving.llm.checkpoint.ranks import TokenRanks, is_ranks

MAX_BYTES = 64 * 2**20
PACKAGE = "mindspore_serving.sentencepiece"
_STRING, _BYTES, _FLOAT, _INT32, _BOOL, _MESSAGE = 9, 12, 2, 5, 8, 11  # types of protobuf
# Message -> field -> (number, type, whether it is repeated, default or message).
MESSAGES: dict[str, dict[str, tuple[int, int, bool, str]]] = {
    "Piece": {
        "piece": (1, _STRING, False, ""),
        "score": (2, _FLOAT, False, ""),
        "type": (3, _INT32, False, "1"),
    },
    "Trainer": {
        "model_type": (3, _INT32, False, "1"),
        "byte_fallback": (35, _BOOL, False, ""),
        "unk_id": (40, _INT32, False, "0"),
        "bos_id": (41, _INT32, False, "1"),
        "eos_id": (42, _INT32, False, "2"),
    },
    "Normalizer": {
        "precompiled_charsmap": (2, _BYTES, False, ""),
        "add_dummy_prefix": (3, _BOOL, False, "true"),
        "remove_extra_whitespaces": (4, _BOOL, False, "true"),
        "escape_whitespaces": (5, _BOOL, False, "true"),
    },
    "Model": {
        "pieces": (1, _MESSAGE, True, "Piece"),
        "trainer_spec": (2, _MESSAGE, False, "Trainer"),
        "normalizer_spec": (3, _MESSAGE, False, "Normalizer"),
    },
}
NAME = "tokenizer.model"
# Classes, of TeleChat and openPangu, that have SentencePiece split the text between special tokens.
BETWEEN_SPECIAL = ("TelechatTokenizer", "Telechat2Tokenizer", "PanguTokenizer")
# Values of tokenizer_class whose ids are those of the file.
CLASSES = (
    "", "LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "InternLMTokenizer",
    "InternLM2Tokenizer", "BaichuanTokenizer", "T5Tokenizer", "PreTrainedTokenizer",
    *BETWEEN_SPECIAL,
)  # fmt: skip
UNIGRAM, BPE = 1, 2  # model_type
KINDS = {UNIGRAM: "t5", BPE: "llama"}  # GGUF's names


class SentencePieceFile:
    """Contents of a tokenizer.model.

    `metadata` holds the keys of `tokenizer.ggml.*`, `cleaning` the normalizers that run first.
    """

    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        """Read a file; `options` is tokenizer_config.json.

        Raises StartError naming the file and what is wrong or not supported.
        """
        self.path = path
        self._options = options
        if path.stat().st_size > MAX_BYTES:
            raise StartError(f"{path} is over {MAX_BYTES} bytes")
        model = _model_class()()
        try:
            model.ParseFromString(path.read_bytes())
        except DecodeError:
            model.Clear()
        if not model.pieces:
            raise StartError(f"{path} is no SentencePiece model; a tokenizer.json is needed")
        self.metadata = self._metadata(model)
        self.is_bpe = model.trainer_spec.model_type == BPE
        self.cleaning = _cleaning(model.normalizer_spec)

    def array(self, key: str) -> list[Any]:
        return list(self.metadata[key])

    texts = array

    def _metadata(self, model: Any) -> dict[str, Any]:
        trainer, normalizer = model.trainer_spec, model.normalizer_spec
        kind = KINDS.get(trainer.model_type)
        if kind is None or not normalizer.escape_whitespaces:
            raise StartError(
                f"{self.path} is a SentencePiece model of type {trainer.model_type}, expected BPE "
                "or unigram with escaped spaces; a tokenizer.json is needed"
            )
        fields = {
            "model": kind,
            "tokens": [piece.piece for piece in model.pieces],
            "scores": [piece.score for piece in model.pieces],
            "token_type": [_type(piece) for piece in model.pieces],
            "unknown_token_id": trainer.unk_id,
            "bos_token_id": trainer.bos_id,
            "eos_token_id": trainer.eos_id,
            "add_space_prefix": normalizer.add_dummy_prefix,
        }
        options = {key: self._options.get(key) for key in ("add_bos_token", "add_eos_token")}
        fields |= {key: value for key, value in options.items() if value is not None}
        return {f"tokenizer.ggml.{name}": value for name, value in fields.items()}


def _type(piece: Any) -> int:
    """Return the type of a piece.

    User-defined pieces with marked spaces become normal ones, as they match only after the spaces
    of a text have been marked.
    """
    is_marked = piece.type == USER and SPACE in piece.piece
    return NORMAL if is_marked else int(piece.type)


def _cleaning(normalizer: Any) -> list[Json]:
    """Return the normalizers that run before spaces are marked."""
    normalizers: list[Json] = []
    if normalizer.precompiled_charsmap:
        table = b64encode(normalizer.precompiled_charsmap).decode()
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": table})
    if normalizer.remove_extra_whitespaces:
        for pattern, content in ((r"\A +| +\z", ""), (" {2,}", " ")):
            normalizers.append(
                {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}
            )
    return normalizers


def _spaced(file: SentencePieceFile) -> Json:
    """Put a space before the text only, not after each special token, as SentencePiece does.

    Files with `legacy` were made when the transformers library did the latter.
    """
    has_prefix = file.metadata["tokenizer.ggml.add_space_prefix"]
    mark = {"type": "Metaspace", "replacement": SPACE, "split": False}
    mark["prepend_scheme"] = "first" if has_prefix else "never"
    return {"normalizer": {"type": "Sequence", "normalizers": []}, "pre_tokenizer": mark}


def tokenizer_from(directory: Path) -> Json:
    """Convert `directory`/tokenizer.model to tokenizer.json, with the tokens that other files add.

    Marian's files have other names. Without that, a tiktoken file of `vocabularies` is converted.
    Raises StartError naming the file that is broken or not supported.
    """
    options = read_optional_json(directory / "tokenizer_config.json")
    if marian.has_files(directory):
        file = SentencePieceFile(directory / marian.NAME, options)
        file.metadata = marian.with_ids(file.metadata, directory)
        return marian.with_decoder(_from_pieces(file, is_legacy=True))
    vocabulary = None if (directory / NAME).is_file() else vocabularies.find(directory)
    if vocabulary is not None:
        listed = chatglm.added_tokens(options)
        result = vocabularies.tokenizer_from(vocabulary, options, listed)
        return _with_added(result, directory, options)
    kind = str(options.get("tokenizer_class") or "").removesuffix("Fast")
    is_chatglm = chatglm.has_tokenizer(directory, options)
    if kind not in CLASSES and not is_chatglm:
        raise StartError(
            f"{directory} has a tokenizer.model, no tokenizer.json, and tokenizer_class {kind!r}, "
            f"whose ids may differ; expected one of {', '.join(filter(None, CLASSES))}, or a "
            "tokenizer.json: AutoTokenizer.from_pretrained(directory).save_pretrained(directory)"
        )
    path = directory / NAME
    if why := file_check.why_no_model(path):
        raise StartError(f"{path} {why}")
    if is_chatglm and is_ranks(path):
        ranks = TokenRanks(path, chatglm.RULE)
        result = chatglm.with_special_tokens(tokenizer_of(ranks), ranks, options, of_ranks=True)
        return _with_added(result, directory, options)
    file = SentencePieceFile(path, options)
    is_legacy = is_chatglm or kind in BETWEEN_SPECIAL or bool(options.get("legacy"))
    result = _from_pieces(file, is_legacy=is_legacy)
    if is_chatglm:
        result = chatglm.with_special_tokens(result, file, options, of_ranks=False)
    return _with_added(result, directory, options)


def _from_pieces(file: SentencePieceFile, *, is_legacy: bool) -> Json:
    result = tokenizer_of(file)
    if file.is_bpe and not is_legacy:
        result |= _spaced(file)
    result["normalizer"]["normalizers"][:0] = file.cleaning
    return result


def _with_added(result: Json, directory: Path, options: Mapping[str, Any]) -> Json:
    """Add the tokens that added_tokens.json and tokenizer_config.json list."""
    added = {token["id"]: token for token in result["added_tokens"]}
    path = directory / "added_tokens.json"
    for content, index in read_optional_json(path).items():
        added[_id(path, index)] = added_token(index, content, is_special=False)
    for index, fields in (options.get("added_tokens_decoder") or {}).items():
        number = _id(directory / "tokenizer_config.json", index)
        token = {**added_token(number, "", is_special=False), **fields}
        if number in added and added[number]["single_word"]:
            token["single_word"] = True
        added[number] = token
    result["added_tokens"] = [token for _, token in sorted(added.items())]
    return result


def _id(path: Path, value: object) -> int:
    text = str(value)
    if not text.isdecimal() or len(text) > 9:
        raise StartError(f"{path} has a token with {value!r}, expected an id")
    return int(text)


@lru_cache(maxsize=1)
def _model_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=f"{PACKAGE}.proto", package=PACKAGE)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, is_repeated, more) in fields.items():
            added: Any = message.field.add(name=field, number=number)
            added.type, added.label = kind, 3 if is_repeated else 1
            if kind == _MESSAGE:
                added.type_name = f".{PACKAGE}.{more}"
            elif more:
                added.default_value = more
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.Model"))
