"""Tokenizer as tokenizer_config.json describes it, for clients that cut texts themselves."""

import json
from pathlib import Path

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.checkpoint.model_files import read_optional_json
from mindspore_serving.llm.loader import OpenedModel

_CLASS = "PreTrainedTokenizerFast"  # class of transformers for any tokenizer.json


def tokenizer_config(opened: OpenedModel) -> str:
    """Return JSON: the model's file without paths, and the chat template that is used.

    Raises InvalidInputs if the model has no tokenizer.
    """
    tokenizer, template = opened.tokenizer, opened.chat_template
    if tokenizer is None:
        raise InvalidInputs("the model has no tokenizer: it takes only token ids")
    config = read_optional_json(Path(opened.directory) / "tokenizer_config.json")
    described = {
        "tokenizer_class": _CLASS,
        **tokenizer.special_tokens,
        **{name: value for name, value in config.items() if not _is_path(name)},
    }
    if template is not None:
        described["chat_template"] = template.source
    return json.dumps(described, ensure_ascii=False)


def _is_path(name: str) -> bool:
    return name == "name_or_path" or name.endswith("_file")
