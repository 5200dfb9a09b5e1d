"""Vocabularies of ranks with no tokenizer.json beside them: tiktoken files of Kimi and Qwen.

The class of a tokenizer says by which rule of `pre_tokenizers` it splits texts; that rule is code
of the model, which is never run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspore_serving import file_check
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.tokenizer import Json, added_token, tokenizer_of
from mindspore_serving.llm.checkpoint.ranks import TokenRanks

NAME, SUFFIX = "tiktoken.model", ".tiktoken"
_RESERVED = 256  # special tokens of Kimi, of which some have a text


@dataclass(frozen=True, slots=True)
class _Family:
    """Tokenizers of one class: the rule by which they split, and their special tokens by id."""

    rule: str
    special_tokens: Callable[[int, Mapping[int, str]], dict[int, str]]


def _of_kimi(count: int, listed: Mapping[int, str]) -> dict[int, str]:
    ids = range(count, count + _RESERVED)
    return {index: listed.get(index, f"<|reserved_token_{index}|>") for index in ids}


def _of_qwen(count: int, _: Mapping[int, str]) -> dict[int, str]:
    extra = [f"<|extra_{number}|>" for number in range(205)]
    return dict(enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>", *extra), count))


_CLASSES = {
    "TikTokenTokenizer": _Family("kimi-k2", _of_kimi),
    "QWenTokenizer": _Family("qwen2", _of_qwen),
}


def find(directory: Path) -> Path | None:
    """Return the tiktoken file of a model directory, None if there is none.

    Raises StartError for several.
    """
    path = directory / NAME
    if path.is_file():
        return path
    files = sorted(directory.glob(f"*{SUFFIX}"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise StartError(f"{directory} has several vocabularies ({names}), expected one of them")
    return files[0] if files else None


def tokenizer_from(path: Path, options: Mapping[str, Any], listed: Mapping[int, str]) -> Json:
    """Build tokenizer.json of the tiktoken file at `path`.

    `options` is tokenizer_config.json, `listed` are its added tokens.  Raises StartError for a file
    that is broken, and for a tokenizer of another class.
    """
    kind = options.get("tokenizer_class")
    family = _CLASSES.get(str(kind))
    if family is None:
        raise StartError(
            f"{path.parent} has {path.name}, no tokenizer.json, and tokenizer_class {kind!r:.80}, "
            f"whose rule for splitting text is code; expected one of {', '.join(_CLASSES)}, or a "
            "tokenizer.json"
        )
    if why := file_check.why_no_model(path):
        raise StartError(f"{path} {why}")
    ranks = TokenRanks(path, family.rule)
    tokens = ranks.texts("tokenizer.ggml.tokens")
    special = family.special_tokens(len(tokens), listed)
    wrong = {index: text for index, text in listed.items() if special.get(index) != text}
    if wrong or len({*special.values()} - {*tokens}) != len(special):
        raise StartError(
            f"{path} has {len(tokens)} tokens, and tokenizer_config.json has added tokens "
            f"{wrong!r:.200}, expected {len(special)} after them, each only once"
        )
    result = tokenizer_of(ranks)
    added = [added_token(index, text, is_special=True) for index, text in special.items()]
    return {**result, "added_tokens": [*result["added_tokens"], *added]}
