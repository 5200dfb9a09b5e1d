"""Checkpoints of models that generate, without what generates: bare, or with a classifier.

Their tensors may have no "model." before their names, as a body alone is saved.
"""

from collections.abc import Mapping
from typing import Any

from mindspore_serving.llm.models import ARCHITECTURES, CLASSIFIER, is_bidirectional

GENERATOR = "ForCausalLM"
_BODY = ("embed_tokens.", "layers.", "norm.", "embed_tokens_per_layer.", "per_layer_", "altup_")
_PREFIX = "model."


def generator_of(config: Mapping[str, Any]) -> str:
    """The architecture that generates with the body that `config` (config.json) describes; "" for
    one that generates itself, or is of another family.
    """
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if is_bidirectional(config):
        return ""
    for ending in (CLASSIFIER, "TextModel", "Model"):
        found = name.removesuffix(ending) + GENERATOR
        if name.endswith(ending) and found in ARCHITECTURES:
            return found
    return ""


def with_generator(config: Mapping[str, Any], *, has_head: bool) -> dict[str, Any]:
    """`config` as that of a model that generates: with the output matrix that `has_head` says it
    has, or else the table of words in its place, so that something is computed.
    """
    name = generator_of(config)
    changed: dict[str, Any] = {"architectures": [name]} if name else {}
    if not has_head:
        changed["tie_word_embeddings"] = True
    return {**config, **changed}


def whole_name(name: str) -> str:
    """A tensor's name in a model that generates."""
    return _PREFIX + name if name.startswith(_BODY) else name
