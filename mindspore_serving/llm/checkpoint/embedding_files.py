"""What a directory says of its vectors besides how they are made: instructions in front of texts,
and how many of their numbers may be left out (Matryoshka).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.model_files import read_optional_json

PROMPTS = "config_sentence_transformers.json"


@dataclass(frozen=True, slots=True)
class EmbeddingOptions:
    """`prompts` are by name, `default_prompt` is the name of one or "".  Vectors may have one of
    `dimensions`; any first so many if `any_dimensions`.
    """

    prompts: dict[str, str]
    default_prompt: str
    dimensions: tuple[int, ...]
    any_dimensions: bool


def read_embedding_options(directory: Path, config: dict[str, Any], size: int) -> EmbeddingOptions:
    """Of the model that `config` (config.json) describes, whose vectors have `size` numbers.

    Raises StartError naming the file and the key that is wrong.
    """
    path = directory / PROMPTS
    found = read_optional_json(path)
    prompts = found.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(one, str) for one in prompts.values()):
        raise StartError(f"{path} has prompts that are no object of texts")
    default = found.get("default_prompt_name") or ""
    if default and default not in prompts:
        raise StartError(f"{path} has default_prompt_name {default!r}, which is none of prompts")
    given = config.get("matryoshka_dimensions") or []
    if not isinstance(given, list) or not all(
        type(one) is int and 1 <= one <= size for one in given
    ):
        raise StartError(
            f"config.json has matryoshka_dimensions {given!r}, expected numbers of 1 to {size}"
        )
    return EmbeddingOptions(
        prompts,
        default,
        tuple(sorted({*given, size})) if given else (),
        any_dimensions=bool(config.get("is_matryoshka")) and not given,
    )
