"""Sizes and differences of vision towers for images of any shape that are computed as graphs.

They are from configurations of transformers.  Knows no tensors and no runtime.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from mindspore_serving.llm.images.layer_settings import LayerSettings, matrices
from mindspore_serving.llm.images.tower_settings import outputs_of, siglip_layers

Projector = Literal["qwen2", "qwen3", "glm", "mlp", "mistral3", "gemma4", "minicpm"]
_GATED = matrices("mlp", "gate_proj up_proj down_proj")


@dataclass(frozen=True, slots=True)
class PatchSettings:
    """A vision transformer for images of any shape, and its projection.

    Squares of `merge` x `merge` patches become one vector.

    Attributes:
        form: what an image processor returns: "grid" has patches square by square and their grid,
            "pixels" an image, "padded" patches row by row with their places, and "slices" rows of
            the patches of several images, one after another.
        patches: name of the tensor that embeds patches.
        patch_size: side of a patch, in pixels.
        merge: see above.
        layers: its layers.
        outputs: numbers of layers whose outputs are used, joined; 0 for the first layer's input.
        theta: base of rotary positions; 0 for none.
        head_size: features of a head.
        projector: kind of the projection.
        rope_layout: how angles of rows and columns follow each other in a head: "halves" has both
            twice, "mixed" too, with frequencies in turns, and "parts" rotates each for itself.
        table: name of the table of positions, which are added; "" if there is none.
        resampling: how `table`, a square, fits to an image; "sum" adds a row's and a column's.
        joining: number of the layer, from 0, behind which squares of 2 x 2 patches become one, of
            which the others are then squares; -1 if there is none.
        first_norm: name of the norm behind the embedding of patches; "" if there is none.
        deep: numbers of layers, from 0, whose outputs are projected too (DeepStack).
        window: side of the windows of attention in merged patches; 0 for none.
        whole: numbers of layers, from 0, that attend without windows.
        last_activation: as `layers.activation`, of "mlp" and "mistral3".
        last_epsilon: of the projection's norm.
        is_standardized: vectors are standardised before the projection.
    """

    form: Literal["grid", "pixels", "padded", "slices"]
    patches: str
    patch_size: int
    merge: int
    layers: LayerSettings
    outputs: tuple[int, ...]
    theta: float
    head_size: int
    projector: Projector
    rope_layout: Literal["halves", "mixed", "parts"] = "halves"
    table: str = ""
    resampling: Literal["bilinear", "bicubic", "nearest", "sum"] = "bilinear"
    joining: int = -1
    first_norm: str = ""
    deep: tuple[int, ...] = ()
    window: int = 0
    whole: tuple[int, ...] = ()
    last_activation: str = "gelu"
    last_epsilon: float = 1e-6
    is_standardized: bool = False

    @property
    def last_merge(self) -> int:
        """Side of the squares that the projection joins."""
        return self.merge // 2 if self.joining >= 0 else self.merge


def find_patch_settings(config: Any) -> PatchSettings | None:
    """Return the settings of the model with transformers' `config`; None for another family."""
    vision = getattr(config, "vision_config", None)
    row = _ROWS.get((config.architectures or [""])[0])
    if row is None or vision is None or getattr(vision, "in_channels", 3) != 3:
        return None
    return row(config, vision)


def _qwen2_vl(config: Any, vision: Any) -> PatchSettings:
    layers = _grid_layers(vision, ("mlp.fc1", "mlp.fc2"))
    return PatchSettings(**_grid(vision, layers, vision.embed_dim), projector="qwen2")


def _qwen2_5_vl(config: Any, vision: Any) -> PatchSettings:
    layers = _grid_layers(vision, _GATED, is_rms=True)
    return PatchSettings(
        **_grid(vision, layers, vision.hidden_size),
        projector="qwen2",
        window=vision.window_size // vision.spatial_merge_size // vision.patch_size,
        whole=tuple(vision.fullatt_block_indexes),
    )


def _qwen3_vl(config: Any, vision: Any) -> PatchSettings:
    layers = _grid_layers(vision, matrices("mlp", "linear_fc1 linear_fc2"))
    return PatchSettings(
        **_grid(vision, layers, vision.hidden_size),
        projector="qwen3",
        table="pos_embed.weight",
        deep=tuple(getattr(vision, "deepstack_visual_indexes", ())),
    )


def _glm4v(config: Any, vision: Any) -> PatchSettings:
    layers = _grid_layers(vision, _GATED, is_rms=True, epsilon=vision.rms_norm_eps)
    return PatchSettings(
        **_grid(vision, layers, vision.hidden_size),
        projector="glm",
        table="embeddings.position_embedding.weight",
        resampling="bicubic",
        first_norm="post_conv_layernorm",
        last_epsilon=1e-5,
    )


def _grid_layers(
    vision: Any, mlp: tuple[str, ...], *, is_rms: bool = False, epsilon: float = 1e-6
) -> LayerSettings:
    return LayerSettings(
        vision.num_heads, vision.hidden_act, epsilon, "blocks.{}", ("norm1", "norm2"),
        ("attn.qkv",), "attn.proj", mlp, is_rms=is_rms,
    )  # fmt: skip


def _grid(vision: Any, layers: LayerSettings, width: int) -> dict[str, Any]:
    """Return the settings that Qwen-VL and GLM-V have alike."""
    return {
        "form": "grid",
        "patches": "patch_embed.proj",
        "patch_size": vision.patch_size,
        "merge": vision.spatial_merge_size,
        "layers": layers,
        "outputs": (vision.depth,),
        "theta": vision.rope_parameters["rope_theta"],
        "head_size": width // vision.num_heads,
    }


def _pixtral(config: Any, vision: Any) -> PatchSettings | None:
    """Return the settings of Pixtral; None for another tower of LLaVA."""
    if vision.model_type != "pixtral" or config.vision_feature_select_strategy == "default":
        return None
    return _rows(config, vision, "mlp", 1)


def _mistral3(config: Any, vision: Any) -> PatchSettings | None:
    if vision.model_type != "pixtral" or not isinstance(config.vision_feature_layer, int):
        return None
    return _rows(config, vision, "mistral3", config.spatial_merge_size)


def _rows(config: Any, vision: Any, projector: Projector, merge: int) -> PatchSettings:
    layers = LayerSettings(
        vision.num_attention_heads, vision.hidden_act, 1e-5, "transformer.layers.{}",
        ("attention_norm", "ffn_norm"), matrices("attention"), "attention.o_proj",
        matrices("feed_forward", "gate_proj up_proj down_proj"), is_rms=True,
    )  # fmt: skip
    return PatchSettings(
        form="pixels",
        patches="patch_conv",
        patch_size=vision.patch_size,
        merge=merge,
        layers=layers,
        outputs=outputs_of(config, vision),
        theta=vision.rope_parameters["rope_theta"],
        head_size=vision.hidden_size // vision.num_attention_heads,
        projector=projector,
        rope_layout="mixed",
        first_norm="ln_pre",
        last_activation=config.projector_hidden_act,
        last_epsilon=getattr(config.text_config, "rms_norm_eps", 1e-6),
    )


def _gemma4(config: Any, vision: Any) -> PatchSettings | None:
    if vision.num_key_value_heads != vision.num_attention_heads:
        return None
    layers = LayerSettings(
        vision.num_attention_heads, vision.hidden_activation, vision.rms_norm_eps,
        "encoder.layers.{}", ("input_layernorm", "pre_feedforward_layernorm"),
        matrices("self_attn", end=".linear"), "self_attn.o_proj.linear",
        matrices("mlp", "gate_proj up_proj down_proj", ".linear"), is_rms=True,
        after=("post_attention_layernorm", "post_feedforward_layernorm"),
        head_normed=("self_attn.q_norm", "self_attn.k_norm"),
        is_clipped=vision.use_clipped_linears, is_unscaled=True,
    )  # fmt: skip
    return PatchSettings(
        form="padded",
        patches="patch_embedder.input_proj",
        patch_size=vision.patch_size,
        merge=vision.pooling_kernel_size,
        layers=layers,
        outputs=(vision.num_hidden_layers,),
        theta=vision.rope_parameters["rope_theta"],
        head_size=vision.head_dim,
        projector="gemma4",
        rope_layout="parts",
        table="patch_embedder.position_embedding_table",
        resampling="sum",
        last_epsilon=vision.rms_norm_eps,
        is_standardized=vision.standardize,
    )


def _minicpm(config: Any, vision: Any) -> PatchSettings | None:
    joins = config.downsample_mode != "4x"
    is_square = isinstance(vision.image_size, int) and isinstance(vision.patch_size, int)
    kernels = {tuple(vision.window_kernel_size), tuple(config.merge_kernel_size)}
    if not is_square or kernels != {(2, 2)} or config.merger_times != 1:
        return None
    if joins and not 0 <= vision.insert_layer_id < vision.num_hidden_layers:
        return None
    return PatchSettings(
        form="slices",
        patches="embeddings.patch_embedding",
        patch_size=vision.patch_size,
        merge=4 if joins else 2,
        layers=siglip_layers(vision),
        outputs=(vision.num_hidden_layers,),
        theta=0.0,
        head_size=vision.hidden_size // vision.num_attention_heads,
        projector="minicpm",
        table="embeddings.position_embedding.weight",
        resampling="nearest",
        joining=vision.insert_layer_id if joins else -1,
    )


_ROWS: dict[str, Callable[[Any, Any], PatchSettings | None]] = {
    "Gemma4ForConditionalGeneration": _gemma4,
    "Glm4vForConditionalGeneration": _glm4v,
    "Glm4vMoeForConditionalGeneration": _glm4v,
    "LlavaForConditionalGeneration": _pixtral,
    "MiniCPMV4_6ForConditionalGeneration": _minicpm,
    "Mistral3ForConditionalGeneration": _mistral3,
    "Qwen2VLForConditionalGeneration": _qwen2_vl,
    "Qwen2_5_VLForConditionalGeneration": _qwen2_5_vl,
    "Qwen3VLForConditionalGeneration": _qwen3_vl,
    "Qwen3VLMoeForConditionalGeneration": _qwen3_vl,
    "Qwen3_5ForConditionalGeneration": _qwen3_vl,
    "Qwen3_5MoeForConditionalGeneration": _qwen3_vl,
}
