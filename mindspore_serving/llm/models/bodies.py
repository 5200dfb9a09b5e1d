"""Backbones: checkpoints of generating models without an output matrix, or with a classifier.

The names of their tensors may lack the prefix "model.", as a backbone saved alone has none.
"""

from collections.abc import Mapping
from typing import Any

from mindspore_serving.llm.models import ARCHITECTURES, CLASSIFIER, is_bidirectional

GENERATOR = "ForCausalLM"
_BODY = ("embed_tokens.", "layers.", "norm.", "embed_tokens_per_layer.", "per_layer_", "altup_")
_PREFIX = "model."


def generator_of(config: Mapping[str, Any]) -> str:
    """Return the generating architecture whose backbone `config` (config.json) describes.

    Returns "" for a model that generates itself, or is of another family.
    """
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if is_bidirectional(config):
        return ""
    for ending in (CLASSIFIER, "TextModel", "Model"):
        generator = name.removesuffix(ending) + GENERATOR
        if name.endswith(ending) and generator in ARCHITECTURES:
            return generator
    return ""


def with_generator(config: Mapping[str, Any], *, has_head: bool) -> dict[str, Any]:
    """Return `config` rewritten to that of the generating model.

    Without an output matrix (`has_head`) the embedding takes its place, so that logits can be
    computed.
    """
    name = generator_of(config)
    changed: dict[str, Any] = {"architectures": [name]} if name else {}
    if not has_head:
        changed["tie_word_embeddings"] = True
    return {**config, **changed}


def generator_tensor_name(name: str) -> str:
    """Return a tensor's name in the generating model."""
    return _PREFIX + name if name.startswith(_BODY) else name
