"""Options of embedding models: instructions before texts, and truncated vectors (Matryoshka)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.model_files import read_optional_json

PROMPTS = "config_sentence_transformers.json"


@dataclass(frozen=True, slots=True)
class EmbeddingOptions:
    """Options of the vectors of one model.

    `prompts` are by name, and `default_prompt` is one of the names or "". Vectors may be truncated
    to one of `dimensions`, or to any size if `any_dimensions`.
    """

    prompts: dict[str, str]
    default_prompt: str
    dimensions: tuple[int, ...]
    any_dimensions: bool


def read_embedding_options(directory: Path, config: dict[str, Any], size: int) -> EmbeddingOptions:
    """Read the options of a model with this config.json, whose vectors have `size` numbers.

    Raises StartError naming the file and the key that is wrong.
    """
    path = directory / PROMPTS
    options = read_optional_json(path)
    prompts = options.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise StartError(f"{path} has prompts {prompts!r:.80}, expected an object of strings")
    default = options.get("default_prompt_name") or ""
    if default and default not in prompts:
        raise StartError(
            f"{path} has default_prompt_name {default!r}, which is none of its prompts"
        )
    sizes = config.get("matryoshka_dimensions") or []
    if not isinstance(sizes, list) or not all(type(n) is int and 1 <= n <= size for n in sizes):
        raise StartError(
            f"config.json has matryoshka_dimensions {sizes!r}, expected numbers from 1 to {size}"
        )
    return EmbeddingOptions(
        prompts,
        default,
        tuple(sorted({*sizes, size})) if sizes else (),
        any_dimensions=bool(config.get("is_matryoshka")) and not sizes,
    )
