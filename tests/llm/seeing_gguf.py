"""Tiny models that take images as two GGUF files, as llama.cpp's converter writes them.

Names of tensors are translated by the gguf package's own table, and keys are written by its writer.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from gguf import MODEL_ARCH, GGUFWriter, VisionProjectorType, get_tensor_name_map
from safetensors.numpy import load_file, save_file

from tests.llm import seeing
from tests.llm.gguf_converted import write_converted
from tests.llm.gguf_files import add_tensor, finish

Config: TypeAlias = dict[str, Any]
Parts: TypeAlias = Iterator[tuple[str, np.ndarray]]

PROJECTORS = {  # those that gguf has no name for are of an older converter
    "smolvlm": VisionProjectorType.IDEFICS3, "internvl": VisionProjectorType.INTERNVL,
    seeing.SEES_WHOLE: VisionProjectorType.GEMMA3, "llava": "mlp", "llava-siglip": "mlp",
    "llava-next": "mlp", "pixtral": VisionProjectorType.PIXTRAL,
    "mistral3-images": VisionProjectorType.PIXTRAL,
    "ministral3-images": VisionProjectorType.PIXTRAL,
    "gemma4-images": VisionProjectorType.GEMMA4V,
    seeing.SEES_BY_WINDOW: VisionProjectorType.GEMMA4V,
    "glm4v": VisionProjectorType.GLM4V, "glm4v-moe": VisionProjectorType.GLM4V,
    "qwen2-vl": VisionProjectorType.QWEN2VL, "qwen2.5-vl": VisionProjectorType.QWEN25VL,
    "qwen3-vl": VisionProjectorType.QWEN3VL, "qwen3-vl-moe": VisionProjectorType.QWEN3VL,
    "qwen3.5": VisionProjectorType.QWEN3VL,
}  # fmt: skip
PARTS = ("vision_", "embed_vision.", "connector", "projector", "visual.", "image_newline")
INTERN = {  # names of parts of InternVL's layers -> those of the first releases
    "vision_tower.": "vision_tower.vision_model.", "encoder.layer.": "encoder.layers.",
    "layernorm_before": "norm1", "layernorm_after": "norm2", "attention.": "self_attn.",
    "projection_layer": "out_proj", "lambda_": "ls",
    "patch_embeddings.projection": "patch_embedding",
    "position_embeddings": "position_embedding",
}  # fmt: skip
LANGUAGE = ("model.text_model.", "language_model.model.", "model.language_model.")
QWEN = tuple(kind for kind in PROJECTORS if kind.startswith("qwen"))
GLM = ("glm4v", "glm4v-moe")
ROWS = ("pixtral", "mistral3-images", "ministral3-images")
GEMMA4 = ("gemma4-images", seeing.SEES_BY_WINDOW)
LLAVA = ("llava", "llava-siglip", "llava-next")
# kind -> (architecture of the language model, its class, text of the token of an image)
KINDS = {
    "smolvlm": ("llama", "LlamaForCausalLM", "<image>"),
    seeing.SEES_WHOLE: ("gemma3", "Gemma3ForCausalLM", "<image_soft_token>"),
    "internvl": ("qwen2", "Qwen2ForCausalLM", "<IMG_CONTEXT>"),
    "llava": ("llama", "LlamaForCausalLM", "<image>"),
    "llava-siglip": ("llama", "MistralForCausalLM", "<image>"),
    "llava-next": ("llama", "MistralForCausalLM", "<image>"),
    "pixtral": ("llama", "MistralForCausalLM", "[IMG]"),
    "mistral3-images": ("llama", "MistralForCausalLM", "[IMG]"),
    "ministral3-images": ("mistral3", "Ministral3ForCausalLM", "[IMG]"),
    "gemma4-images": ("gemma4", "Gemma4ForCausalLM", "<|image|>"),
    seeing.SEES_BY_WINDOW: ("gemma4", "Gemma4ForCausalLM", "<|image|>"),
    "glm4v": ("glm4", "Glm4ForCausalLM", "<|image|>"),
    "glm4v-moe": ("glm4moe", "Glm4MoeForCausalLM", "<|image|>"),
    "qwen2-vl": ("qwen2vl", "Qwen2ForCausalLM", "<|image_pad|>"),
    "qwen2.5-vl": ("qwen2vl", "Qwen2ForCausalLM", "<|image_pad|>"),
    "qwen3-vl": ("qwen3vl", "Qwen3ForCausalLM", "<|image_pad|>"),
    "qwen3-vl-moe": ("qwen3vlmoe", "Qwen3MoeForCausalLM", "<|image_pad|>"),
    "qwen3.5": ("qwen35", "Qwen3_5ForCausalLM", "<|image_pad|>"),
}
SQUARE = ("qwen3-vl", "qwen3-vl-moe", "qwen3.5")  # with a table of positions
TURNED = {"fc1": "fc2", "fc2": "fc1"}
NEWLINE = "model.image_newline"  # as an older converter names it
LEAVES = (".weight", ".bias", ".input_min", ".input_max", ".output_min", ".output_max")
MARKS: dict[str, dict[int, str]] = {  # kind -> texts of its other tokens, by their ids
    **dict.fromkeys(QWEN, {seeing.VIDEO: "<|video_pad|>"}),
    **dict.fromkeys(GLM, {seeing.VIDEO: "<|video|>"}),
    **dict.fromkeys(GEMMA4, {6: "<|image>", 7: "<image|>"}),
}


def write(source: Path, kind: str, directory: Path, *, matrices: str = "F32") -> Path:
    """The checkpoint `source` as model.gguf and mmproj-model.gguf in `directory`."""
    directory.mkdir(parents=True)
    config, tensors = json.loads((source / "config.json").read_text()), {}
    for name, values in load_file(source / "model.safetensors").items():
        for stem in LANGUAGE:
            if name.startswith(stem):
                tensors["model." + name.removeprefix(stem)] = values
        if name.endswith("lm_head.weight"):
            tensors["lm_head.weight"] = values
        if name.startswith(("model.layers.", "model.embed_tokens.", "model.norm.")):
            tensors[name] = values
    architecture, name, token = KINDS[kind]
    plain = directory / "plain"
    plain.mkdir()
    fields = {
        **config["text_config"],
        "architectures": [name],
        "tie_word_embeddings": "lm_head.weight" not in tensors,
    }
    (plain / "config.json").write_text(json.dumps(fields))
    save_file(tensors, plain / "model.safetensors")
    written = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
    marks = {seeing.IMAGE: token} | MARKS.get(kind, {})
    tokens = [marks.get(number, text) for text, number in written.items()]
    types = [3 if number < len(seeing.MARKS) else 1 for number in range(len(tokens))]
    vocabulary = {
        "tokens": tokens, "types": types, "pre": "gpt-2", "bos_token_id": 1, "eos_token_id": 2,
        "merges": ["a b"], "add_bos_token": False,
    }  # fmt: skip
    template = (source / "chat_template.jinja").read_text().replace("<image>", token)
    path = directory / "model.gguf"
    write_converted(plain, architecture, path, vocabulary=vocabulary, template=template)
    write_tower(source, kind, directory / "mmproj-model.gguf", matrices=matrices)
    return path


def write_tower(source: Path, kind: str, path: Path, *, matrices: str = "F32") -> Path:
    """The vision tower of the checkpoint `source`."""
    config = json.loads((source / "config.json").read_text())
    processor = json.loads((source / "preprocessor_config.json").read_text())
    writer = GGUFWriter(path, "clip")
    writer.add_clip_has_vision_encoder(True)
    writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
    writer.add_vision_image_mean(processor["image_mean"])
    writer.add_vision_image_std(processor["image_std"])
    vision = config["vision_config"]
    if kind in GEMMA4:  # it may take sounds too
        writer.add_clip_vision_projector_type(PROJECTORS[kind])
        writer.add_tensor("a.pre_encode.out.weight", np.ones((4, 4), np.float32))
    elif kind != "llava-siglip":  # the first files do not have the key
        writer.add_clip_projector_type(PROJECTORS[kind])
    if kind in (*QWEN, *GLM):
        changed, count = _qwen, _write_qwen_keys(writer, kind, vision, processor)
    else:
        changed, count = CHANGES.get(kind, _siglip), _write_keys(writer, kind, config, processor)
    names = get_tensor_name_map(MODEL_ARCH.MMPROJ, max(count, 4))  # also of matrices behind
    for name, values in load_file(source / "model.safetensors").items():
        if ".head." in name or not any(part in name for part in PARTS):
            continue
        for known, part in changed(kind, vision, name, values):
            label = known if known == NEWLINE else names.get_name(known, LEAVES) or known
            assert label.startswith(("v.", "mm.", NEWLINE)), known
            is_matrix = part.ndim == 2 and "embd" not in label and part.shape[1] % 32 == 0
            add_tensor(writer, label, part, matrices if is_matrix else "F32")
    return finish(writer)


def _write_sizes(writer: GGUFWriter, vision: Config, image_size: int, count: int) -> None:
    writer.add_vision_image_size(image_size)
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_block_count(count)


def _write_keys(writer: GGUFWriter, kind: str, config: Config, processor: Config) -> int:
    vision = {"image_size": 224, "layer_norm_eps": 1e-5, **config["vision_config"]}
    sizes = {name: np.max(vision[name]).item() for name in ("image_size", "patch_size")}
    count = vision["num_hidden_layers"]
    if kind in LLAVA:
        count = _write_outputs(writer, config["vision_feature_layer"], count)
    _write_sizes(writer, sizes, sizes["image_size"], count)
    writer.add_vision_embedding_length(vision["hidden_size"])
    writer.add_vision_feed_forward_length(vision["intermediate_size"])
    writer.add_vision_head_count(vision["num_attention_heads"])
    epsilon = vision.get("rms_norm_eps") or vision["layer_norm_eps"]
    writer.add_vision_attention_layernorm_eps(epsilon)
    if kind in ROWS:
        writer.add_vision_use_silu(vision["hidden_act"] == "silu")
        writer.add_vision_use_gelu(vision["hidden_act"] == "gelu")
    else:
        writer.add_vision_use_gelu(kind not in LLAVA)
    side = sizes["image_size"] // sizes["patch_size"]
    if kind == "internvl":
        writer.add_vision_projector_scale_factor(int(1 / config["downsample_ratio"]))
        writer.add_vision_preproc_max_tiles(processor["max_patches"])
    elif kind == "smolvlm":
        writer.add_vision_projector_scale_factor(config["scale_factor"])
        writer.add_vision_preproc_image_size(processor["size"]["longest_edge"])
    elif kind == seeing.SEES_WHOLE:
        writer.add_vision_projector_scale_factor(side // int(config["mm_tokens_per_image"] ** 0.5))
    elif kind in GEMMA4:
        merge = vision["pooling_kernel_size"]
        writer.add_vision_projector_scale_factor(merge)
        token = (vision["patch_size"] * merge) ** 2
        writer.add_vision_max_pixels(processor["max_soft_tokens"] * token)
    elif kind == "llava-next":
        numbers = [number for shape in config["image_grid_pinpoints"] for number in shape]
        writer.add_array("clip.vision.image_grid_pinpoints", numbers)
    elif config.get("spatial_merge_size"):
        writer.add_vision_spatial_merge_size(config["spatial_merge_size"])
    return int(count)


def _write_outputs(writer: GGUFWriter, layers: Any, count: int) -> int:
    """Write which layers LLaVA reads, if several; return the number of layers in the file."""
    numbers = [range(count + 1)[n] for n in (layers if isinstance(layers, list) else [layers])]
    if len(numbers) > 1:
        writer.add_array("clip.vision.feature_layer", numbers)
    return max(numbers)


def _write_qwen_keys(writer: GGUFWriter, kind: str, vision: Config, processor: Config) -> int:
    side = int(vision.get("num_position_embeddings", 0) ** 0.5)
    size = side * vision["patch_size"] or vision.get("image_size") or 560  # the converter's
    _write_sizes(writer, vision, size, vision["depth"])
    width = vision.get("embed_dim") or vision["hidden_size"]
    writer.add_vision_embedding_length(width)
    writer.add_vision_feed_forward_length(
        vision.get("intermediate_size") or int(width * vision["mlp_ratio"])
    )
    writer.add_vision_head_count(vision["num_heads"])
    writer.add_vision_attention_layernorm_eps(vision.get("rms_norm_eps") or 1e-6)
    writer.add_vision_min_pixels(processor["size"]["shortest_edge"])
    writer.add_vision_max_pixels(processor["size"]["longest_edge"])
    if kind in ("qwen2.5-vl", *GLM):
        writer.add_vision_use_silu(True)
    if kind == "qwen2.5-vl":
        writer.add_vision_n_wa_pattern(vision["fullatt_block_indexes"][0] + 1)
        writer.add_vision_window_size(vision["window_size"])
    if kind in SQUARE:
        writer.add_vision_use_gelu(True)
        deep = vision.get("deepstack_visual_indexes", ())
        writer.add_vision_is_deepstack_layers([i in deep for i in range(vision["depth"])])
    return int(vision["depth"])


def _siglip(kind: str, vision: Config, name: str, values: np.ndarray) -> Parts:
    name = name.replace("mm_input_projection_weight", "mm_input_projection.weight")
    if name.endswith("soft_emb_norm.weight"):
        values = values + np.float32(1)
    if kind != "smolvlm":
        name = name.replace("vision_tower.", "vision_tower.vision_model.")
    yield name, values


def _intern(kind: str, vision: Config, name: str, values: np.ndarray) -> Parts:
    """Under the names of the first releases, which the converter reads."""
    projection = {"layer_norm": "mlp1.0", "linear_1": "mlp1.1", "linear_2": "mlp1.3"}
    for part, first in projection.items():
        if name.startswith(f"multi_modal_projector.{part}."):
            yield name.replace(f"multi_modal_projector.{part}", first), values
            return
    for part, first in INTERN.items():
        name = name.replace(part, first)
    if name.endswith("cls_token"):
        yield "v.class_embd", values
    else:
        yield (name if name.endswith((".weight", ".bias")) else f"{name}.weight"), values


def _qwen(kind: str, vision: Config, name: str, values: np.ndarray) -> Parts:
    """The frames of patches apart, and queries, keys and values too but in later models."""
    name = name.removeprefix("model.")
    end = name.rpartition(".")[2]
    merger = {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}
    deep = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}
    part = name.split(".")[-2]
    if name.endswith("patch_embed.proj.weight"):
        yield "v.patch_embd.weight", values[:, :, 0]
        yield "v.patch_embd.weight.1", values[:, :, 1]
    elif ".qkv." in name and kind not in (*SQUARE, *GLM):
        for label, rows in zip("qkv", np.split(values, 3), strict=True):
            yield name.replace("qkv", label), rows
    elif "deepstack" in name:
        layer = vision["deepstack_visual_indexes"][int(name.split(".")[2])]
        yield f"v.deepstack.{layer}.{deep[part]}.{end}", values
    elif kind in SQUARE and ".merger." in name:
        yield f"{merger[part]}.{end}", values
    else:
        yield name, values


def _llava(kind: str, vision: Config, name: str, values: np.ndarray) -> Parts:
    """As an older converter wrote them, without the last layer, which is not used."""
    parts = name.split(".")
    projection = {"linear_1": "mm.0", "linear_2": "mm.2"}
    if name == "image_newline":
        yield NEWLINE, values
    elif parts[1] in projection:
        yield f"{projection[parts[1]]}.{parts[-1]}", values
    elif "post_layernorm" not in name and f".layers.{_unused(vision)}." not in name:
        if kind == "llava" and parts[-2] in TURNED:
            name = name.replace(parts[-2], TURNED[parts[-2]])
        yield name.replace("vision_tower.", "vision_tower.vision_model."), values


def _unused(vision: Config) -> int:
    return int(vision["num_hidden_layers"]) - 1


def _pixtral(kind: str, vision: Config, name: str, values: np.ndarray) -> Parts:
    """Queries and keys in the order of pairs."""
    if ".q_proj." in name or ".k_proj." in name:
        heads = values.reshape(vision["num_attention_heads"], 2, -1, *values.shape[1:])
        values = heads.swapaxes(1, 2).reshape(values.shape)
    yield name, values
    if name == "vision_tower.ln_pre.weight":  # what llama.cpp puts at the end of a row
        yield "v.token_embd.img_break", np.ones(8, np.float32)


def _gemma4(kind: str, vision: Config, name: str, values: np.ndarray) -> Parts:
    """Patches as squares."""
    if name.endswith("patch_embedder.input_proj.weight"):
        side = vision["patch_size"]
        values = values.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)
    if name.endswith("position_embedding_table"):
        name += ".weight"
    name = name.replace("model.vision_tower.encoder.", "vision_model.model.")
    yield name.replace(".linear.weight", ".weight"), values.reshape(values.shape or 1)


CHANGES = {
    "internvl": _intern,
    **dict.fromkeys(LLAVA, _llava),
    **dict.fromkeys(ROWS, _pixtral),
    **dict.fromkeys(GEMMA4, _gemma4),
}
