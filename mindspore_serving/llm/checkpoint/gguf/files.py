"""A GGUF file as a directory of the JSON files that its model has in Hugging Face's format.

The path of such a file is that of the GGUF file followed by its name: `model.gguf/config.json`.
Knows the meaning of keys; each file is built when it is read.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.built_files import key_of, read_or_build, source_digest
from mindspore_serving.llm.checkpoint.gguf.configuration import config_of
from mindspore_serving.llm.checkpoint.gguf.pieces import firsts, open_gguf
from mindspore_serving.llm.checkpoint.gguf.projector import (
    find_projector,
    is_projector,
    processor_of,
    with_images,
)
from mindspore_serving.llm.checkpoint.gguf.reader import MAGIC, GgufFile, UnreadArray
from mindspore_serving.llm.checkpoint.gguf.tokenizer import tokenizer_of, warn_without_rule

SUFFIX = ".gguf"
CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
_BLOB = "sha256-"  # with which names of Ollama's files begin, which have no suffix
TEMPLATE, TOKENS = "tokenizer.chat_template", "tokenizer.ggml.tokens"
# Special token -> its name in keys.
SPECIAL = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
    "sep_token": "seperator",  # the format's spelling
    "cls_token": "cls",
}
# Keys of tokens that end an answer, and the texts of such tokens.
ENDS = ("eos", "eot", "eom")
END_TEXTS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>")
# Ends of gpt-oss's answers: <|end|> ends only one of their messages.
HARMONY = ("<|return|>", "<|call|>")
# Recommended sampling.
SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
# The same of Ollama's models.
PARAMETERS = {name: name for name in SAMPLING} | {"repetition_penalty": "repeat_penalty"}
PARAMETERS_FILE = "params.json"
_MAX_PARAMETERS = 1 << 16  # bytes


def find_gguf(path: Path) -> Path | None:
    """Return the GGUF file that `path` means, None if there is none.

    That is `path` itself, or the only one in a directory without other weights, or the first of a
    model in several files; vision towers are not counted. Raises StartError for several models.
    """
    if is_gguf(path):
        return path
    if not path.is_dir() or (path / "config.json").exists():
        return None
    files = firsts(sorted(file for file in path.glob(f"*{SUFFIX}") if not is_projector(file)))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise StartError(f"{path} has several GGUF files ({names}): give the path of a single file")
    return files[0] if files else None


def is_gguf(path: Path) -> bool:
    """Return whether `path` is a GGUF file: by its suffix, or of Ollama's blobs by its content."""
    if path.name.startswith(_BLOB):
        return path.is_file() and _has_magic(path)
    return path.suffix == SUFFIX and path.is_file()


def _has_magic(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def has_file(path: Path) -> bool:
    """Return whether `path` is one of the files in a GGUF file."""
    return path.name in FILES and is_gguf(path.parent)


def read_file(path: Path) -> dict[str, Any]:
    """Build the file `path`.  Raises StartError naming the GGUF file and what is wrong."""
    file = open_gguf(path.parent)
    projector = find_projector(path.parent) if path.name in (CONFIG, PROCESSOR) else None
    if path.name == PROCESSOR:
        return processor_of(projector) if projector else {}
    if path.name == CONFIG:
        return with_images(config_of(file), file, projector) if projector else config_of(file)
    content: dict[str, Any] = json.loads(_built(file, path.name))
    if path.name == "generation_config.json":
        content |= _read_parameters(file.path.with_name(PARAMETERS_FILE))
    return content


def read_tokenizer(path: Path) -> tuple[bytes, int]:
    """Return the text of tokenizer.json of the GGUF file `path`, and its number of tokens."""
    file = open_gguf(path)
    warn_without_rule(file)
    content = _built(file, "tokenizer.json")
    return content, file.metadata[TOKENS].count


def _built(file: GgufFile, name: str) -> bytes:
    """Return one of the files BUILT as JSON, which is built once for all processes."""

    def build() -> bytes:
        return json.dumps(BUILT[name](file), ensure_ascii=False, separators=(",", ":")).encode()

    with file.head() as head:
        key = key_of((name.encode(), source_digest(Path(__file__).parent), head))
    return read_or_build(key, build)


def _tokenizer_config(file: GgufFile) -> dict[str, Any]:
    """Return special tokens, and chat templates by name."""
    tokens = file.texts(TOKENS)
    config: dict[str, Any] = {}
    for role, key in SPECIAL.items():
        token_id = _token_id(file, key, len(tokens))
        if token_id is not None:
            config[role] = tokens[token_id]
    templates = {"default": file.metadata.get(TEMPLATE)}
    for key, value in file.metadata.items():
        name = key.removeprefix(f"{TEMPLATE}.")
        if name != key:
            templates[name] = value
    config["chat_template"] = [
        {"name": name, "template": text} for name, text in templates.items() if text
    ]
    return config


def _generation_config(file: GgufFile) -> dict[str, Any]:
    """Return the tokens that end an answer, and recommended sampling."""
    tokens = file.texts(TOKENS)
    ends = [_token_id(file, key, len(tokens)) for key in ENDS]
    is_harmony = set(HARMONY) <= set(tokens)
    named = set(HARMONY if is_harmony else END_TEXTS)
    ends += [index for index, token in enumerate(tokens) if token in named]
    if is_harmony:
        ends = [index for index in ends if index is not None and tokens[index] != "<|end|>"]
    config: dict[str, Any] = {"eos_token_id": list(dict.fromkeys(i for i in ends if i is not None))}
    for name, key in SAMPLING.items():
        value = file.metadata.get(f"general.sampling.{key}")
        if value is not None and not isinstance(value, UnreadArray):
            # Undo the rounding to float32: 0.949999988 is 0.95.
            config[name] = float(f"{value:.6g}") if isinstance(value, float) else value
    return config


def _read_parameters(path: Path) -> dict[str, Any]:
    """Return the recommended sampling of a model of Ollama, which lies beside its GGUF file."""
    try:
        parameters = json.loads(path.read_bytes()[:_MAX_PARAMETERS])
    except (OSError, ValueError):
        return {}
    if not isinstance(parameters, dict):
        return {}
    return {name: parameters[key] for name, key in PARAMETERS.items() if key in parameters}


def _token_id(file: GgufFile, key: str, count: int) -> int | None:
    token_id = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
    if token_id is not None and (type(token_id) is not int or not 0 <= token_id < count):
        raise StartError(
            f"{file.path} has {key}_token_id {token_id!r}, expected an id below {count}"
        )
    return token_id


BUILT: dict[str, Callable[[GgufFile], dict[str, Any]]] = {
    "generation_config.json": _generation_config,
    "tokenizer_config.json": _tokenizer_config,
    "tokenizer.json": tokenizer_of,
}
FILES = (CONFIG, PROCESSOR, *BUILT)
