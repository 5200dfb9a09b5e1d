"""Sizes and differences of vision towers that are computed as graphs.

They are from configurations of transformers.  Knows no tensors and no runtime.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class TowerSettings:
    """A vision transformer and its projection to the vectors of a language model.

    Attributes:
        image_size: side of an image or tile, in pixels.
        patch_size: side of a patch, in pixels.
        heads: attention heads of a layer.
        activation: name of that between the matrices of a layer, as transformers has it.
        epsilon: of the norms.
        has_class: a class token stands before the patches, and a norm before the layers (CLIP).
        outputs: numbers of layers whose outputs are used, joined; 0 for the first layer's input.
        is_normed: the outputs pass the norm behind the last layer.
        keeps_class: the class token stays among the outputs.
        projector: "mlp" has two matrices, "shuffle" joins `scale` x `scale` patches to one vector,
            and "pool" takes their mean.
        scale: see `projector`.
        projector_activation: as `activation`, of "mlp".
    """

    image_size: int
    patch_size: int
    heads: int
    activation: str
    epsilon: float
    has_class: bool
    outputs: tuple[int, ...]
    is_normed: bool
    keeps_class: bool
    projector: Literal["mlp", "shuffle", "pool"]
    scale: int = 1
    projector_activation: str = "gelu"

    @property
    def side(self) -> int:
        """Number of patches in a row."""
        return self.image_size // self.patch_size


def find_settings(config: Any) -> TowerSettings | None:
    """Return the settings of the model with transformers' `config`; None for another family."""
    names = config.architectures or [""]
    row = _ROWS.get(names[0])
    if row is None or config.vision_config.num_channels != 3:
        return None
    return row(config, config.vision_config)


def _llava(config: Any, vision: Any) -> TowerSettings | None:
    if vision.model_type not in ("clip_vision_model", "siglip_vision_model"):
        return None
    has_class = vision.model_type == "clip_vision_model"
    layers = config.vision_feature_layer
    layers = [layers] if isinstance(layers, int) else layers
    count = vision.num_hidden_layers + 1  # also the first layer's input
    keeps_all = config.vision_feature_select_strategy != "default"
    if not has_class and not keeps_all:
        return None  # it would leave out a patch
    return TowerSettings(
        **_sizes(vision),
        has_class=has_class,
        outputs=tuple(range(count)[layer] for layer in layers),
        is_normed=False,
        keeps_class=has_class and keeps_all,
        projector="mlp",
        projector_activation=config.projector_hidden_act,
    )


def _idefics(config: Any, vision: Any) -> TowerSettings:
    return _siglip(vision, "shuffle", config.scale_factor)


def _gemma3(config: Any, vision: Any) -> TowerSettings:
    side = vision.image_size // vision.patch_size
    return _siglip(vision, "pool", side // int(config.mm_tokens_per_image**0.5))


def _siglip(vision: Any, projector: Literal["shuffle", "pool"], scale: int) -> TowerSettings:
    return TowerSettings(
        **_sizes(vision),
        has_class=False,
        outputs=(vision.num_hidden_layers,),
        is_normed=True,
        keeps_class=False,
        projector=projector,
        scale=scale,
    )


def _sizes(vision: Any) -> dict[str, Any]:
    return {
        "image_size": vision.image_size,
        "patch_size": vision.patch_size,
        "heads": vision.num_attention_heads,
        "activation": vision.hidden_act,
        "epsilon": vision.layer_norm_eps,
    }


_ROWS: dict[str, Callable[[Any, Any], TowerSettings | None]] = {
    "Gemma3ForConditionalGeneration": _gemma3,
    "Idefics3ForConditionalGeneration": _idefics,
    "LlavaForConditionalGeneration": _llava,
    "SmolVLMForConditionalGeneration": _idefics,
}
