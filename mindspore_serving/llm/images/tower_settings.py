"""Sizes and differences of vision towers for tiles of one size that are computed as graphs.

They are from configurations of transformers.  Knows no tensors and no runtime.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from mindspore_serving.llm.images.layer_settings import LayerSettings, matrices
from mindspore_serving.llm.images.llava_formats import TileLayout


@dataclass(frozen=True, slots=True)
class TileNames:
    """Names of tensors before and behind the layers of a tower; "" if there is none."""

    patches: str = "embeddings.patch_embedding"
    positions: str = "embeddings.position_embedding.weight"
    token: str = "embeddings.class_embedding"
    norm_before: str = ""
    norm_behind: str = "post_layernorm"


@dataclass(frozen=True, slots=True)
class TowerSettings:
    """A vision transformer and its projection to the vectors of a language model.

    Attributes:
        image_size: side of an image or tile, in pixels.
        patch_size: side of a patch, in pixels.
        layers: its layers.
        names: of its other tensors.
        has_class: a class token stands before the patches.
        outputs: numbers of layers whose outputs are used, joined; 0 for the first layer's input.
        is_normed: the outputs pass the norm behind the last layer.
        keeps_class: the class token stays among the outputs.
        projector: "mlp" has two matrices, "shuffle" joins `scale` x `scale` patches to one vector,
            "shuffle-mlp" does both, and "pool" takes the mean of patches.
        scale: see `projector`.
        projector_activation: as `layers.activation`, of "mlp".
        has_parts: the position of a patch is looked up by its part of a side.
        tiles: puts the vectors of an image's tiles in order; None if tiles follow each other.
    """

    image_size: int
    patch_size: int
    layers: LayerSettings
    names: TileNames
    has_class: bool
    outputs: tuple[int, ...]
    is_normed: bool
    keeps_class: bool
    projector: Literal["mlp", "shuffle", "shuffle-mlp", "pool"]
    scale: int = 1
    projector_activation: str = "gelu"
    has_parts: bool = False
    tiles: TileLayout | None = None

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


def _llava(config: Any, vision: Any, tiles: TileLayout | None = None) -> TowerSettings | None:
    if vision.model_type not in ("clip_vision_model", "siglip_vision_model"):
        return None
    has_class = vision.model_type == "clip_vision_model"
    keeps_all = config.vision_feature_select_strategy != "default"
    if not has_class and not keeps_all:
        return None  # it would leave out a patch
    return TowerSettings(
        **_sizes(vision),
        names=TileNames(norm_before="pre_layrnorm" if has_class else ""),
        has_class=has_class,
        outputs=outputs_of(config, vision),
        is_normed=False,
        keeps_class=has_class and keeps_all,
        projector="mlp",
        projector_activation=config.projector_hidden_act,
        tiles=tiles,
    )


def _llava_tiled(config: Any, vision: Any) -> TowerSettings | None:
    """Return the settings of LLaVA-NeXT, or of LLaVA-OneVision, which limits the vectors."""
    ratio = getattr(config, "vision_aspect_ratio", "0")
    return _llava(
        config,
        vision,
        TileLayout(
            config.image_grid_pinpoints, vision.image_size, vision.image_size // vision.patch_size,
            int(ratio.removeprefix("anyres_max_")),
        ),
    )  # fmt: skip


def outputs_of(config: Any, vision: Any) -> tuple[int, ...]:
    """Return the numbers of layers in `vision_feature_layer`; 0 for the first layer's input."""
    layers = config.vision_feature_layer
    count = vision.num_hidden_layers + 1
    return tuple(range(count)[layer] for layer in ([layers] if isinstance(layers, int) else layers))


def _internvl(config: Any, vision: Any) -> TowerSettings | None:
    (height, width), (patch, patch_width) = vision.image_size, vision.patch_size
    scale = round(1 / config.downsample_ratio)
    has_class = config.vision_feature_select_strategy == "default"  # which it leaves out
    side = height // patch
    if (height, patch) != (width, patch_width) or side % scale or not has_class:
        return None
    if not vision.use_absolute_position_embeddings or not isinstance(
        config.vision_feature_layer, int
    ):
        return None
    layers = LayerSettings(
        vision.num_attention_heads, vision.hidden_act, vision.layer_norm_eps,
        "encoder.layer.{}", ("layernorm_before", "layernorm_after"), matrices("attention"),
        "attention.projection_layer", matrices("mlp", "fc1 fc2"),
        is_rms=vision.norm_type == "rms_norm", scales=("lambda_1", "lambda_2"),
        normed=("attention.q_norm", "attention.k_norm") if vision.use_qk_norm else (),
    )  # fmt: skip
    return TowerSettings(
        image_size=height,
        patch_size=patch,
        layers=layers,
        names=TileNames(
            "embeddings.patch_embeddings.projection", "embeddings.position_embeddings",
            "embeddings.cls_token", norm_behind="layernorm",
        ),
        has_class=True,
        outputs=outputs_of(config, vision),
        is_normed=config.vision_feature_layer == -1 and not vision.use_mean_pooling,
        keeps_class=False,
        projector="shuffle-mlp",
        scale=scale,
        projector_activation=config.projector_hidden_act,
    )  # fmt: skip


def _idefics(config: Any, vision: Any) -> TowerSettings:
    return _siglip(vision, "shuffle", config.scale_factor)


def _gemma3(config: Any, vision: Any) -> TowerSettings:
    side = vision.image_size // vision.patch_size
    return _siglip(vision, "pool", side // int(config.mm_tokens_per_image**0.5))


def _siglip(vision: Any, projector: Literal["shuffle", "pool"], scale: int) -> TowerSettings:
    return TowerSettings(
        **_sizes(vision),
        names=TileNames(),
        has_class=False,
        outputs=(vision.num_hidden_layers,),
        is_normed=True,
        keeps_class=False,
        projector=projector,
        scale=scale,
        has_parts=projector == "shuffle",
    )


def _sizes(vision: Any) -> dict[str, Any]:
    return {
        "image_size": vision.image_size,
        "patch_size": vision.patch_size,
        "layers": siglip_layers(vision),
    }


def siglip_layers(vision: Any) -> LayerSettings:
    """Return the layers of SigLIP, CLIP and towers after them."""
    return LayerSettings(
        vision.num_attention_heads, vision.hidden_act, vision.layer_norm_eps,
        "encoder.layers.{}", ("layer_norm1", "layer_norm2"), matrices("self_attn"),
        "self_attn.out_proj", matrices("mlp", "fc1 fc2"),
    )  # fmt: skip


_ROWS: dict[str, Callable[[Any, Any], TowerSettings | None]] = {
    "Gemma3ForConditionalGeneration": _gemma3,
    "Idefics3ForConditionalGeneration": _idefics,
    "InternVLForConditionalGeneration": _internvl,
    "LlavaForConditionalGeneration": _llava,
    "LlavaNextForConditionalGeneration": _llava_tiled,
    "LlavaOnevisionForConditionalGeneration": _llava_tiled,
    "SmolVLMForConditionalGeneration": _idefics,
}
