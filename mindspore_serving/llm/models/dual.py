"""Families of models with a tower for texts and one for images, whose vectors can be compared.

A table; knows no library.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DualFamily:
    """Differences of a family.

    `is_padded` if a text always has all positions, because its last token stands for it.
    `is_multi_label` if scores of labels are independent of each other (sigmoid, not softmax).
    """

    name: str
    is_padded: bool
    is_multi_label: bool


DUAL_FAMILIES = {  # by the first entry of config.json's `architectures`
    "CLIPModel": DualFamily("CLIP", is_padded=False, is_multi_label=False),
    "SiglipModel": DualFamily("SigLIP", is_padded=True, is_multi_label=True),
    "Siglip2Model": DualFamily("SigLIP 2", is_padded=True, is_multi_label=True),
}


def find_dual(config: Mapping[str, Any]) -> DualFamily | None:
    """Return the family of the model that `config` (config.json) describes; None if there is none.

    Its first architecture decides.
    """
    names = config.get("architectures")
    first = names[0] if isinstance(names, list) and names else None
    return DUAL_FAMILIES.get(first) if isinstance(first, str) else None
