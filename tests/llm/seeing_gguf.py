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

PROJECTORS = {
    "smolvlm": VisionProjectorType.IDEFICS3, "internvl": VisionProjectorType.INTERNVL,
    seeing.SEES_WHOLE: VisionProjectorType.GEMMA3,
}  # fmt: skip
PARTS = ("vision_", "connector", "projector", "visual.")
INTERN = {  # names of parts of InternVL's layers -> those of the first releases
    "vision_tower.": "vision_tower.vision_model.", "encoder.layer.": "encoder.layers.",
    "layernorm_before": "norm1", "layernorm_after": "norm2", "attention.": "self_attn.",
    "projection_layer": "out_proj", "lambda_": "ls",
    "patch_embeddings.projection": "patch_embedding",
    "position_embeddings": "position_embedding",
}  # fmt: skip
LANGUAGE = ("model.text_model.", "language_model.model.", "model.language_model.")
QWEN = {  # kind -> its projector
    "qwen2-vl": VisionProjectorType.QWEN2VL,
    "qwen2.5-vl": VisionProjectorType.QWEN25VL,
    "qwen3-vl": VisionProjectorType.QWEN3VL,
}
# kind -> (architecture of the language model, its class, text of the token of an image)
KINDS = {
    "smolvlm": ("llama", "LlamaForCausalLM", "<image>"),
    seeing.SEES_WHOLE: ("gemma3", "Gemma3ForCausalLM", "<image_soft_token>"),
    "internvl": ("qwen2", "Qwen2ForCausalLM", "<IMG_CONTEXT>"),
    "qwen2-vl": ("qwen2vl", "Qwen2ForCausalLM", "<|image_pad|>"),
    "qwen2.5-vl": ("qwen2vl", "Qwen2ForCausalLM", "<|image_pad|>"),
    "qwen3-vl": ("qwen3vl", "Qwen3ForCausalLM", "<|image_pad|>"),
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
    fields = {**config["text_config"], "architectures": [name]}
    (plain / "config.json").write_text(json.dumps(fields))
    save_file(tensors, plain / "model.safetensors")
    written = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
    marks = {seeing.IMAGE: token} | ({seeing.VIDEO: "<|video_pad|>"} if kind in QWEN else {})
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
    if kind in QWEN:
        count, changed = _write_qwen_keys(writer, kind, vision, processor), _qwen
    else:
        changed = _intern if kind == "internvl" else _siglip
        count = _write_keys(writer, kind, config, processor)
    names = get_tensor_name_map(MODEL_ARCH.MMPROJ, max(count, 4))  # also of matrices behind
    for name, values in load_file(source / "model.safetensors").items():
        if ".head." in name or not any(part in name for part in PARTS):
            continue
        for known, part in changed(kind, vision, name, values):
            label = names.get_name(known, (".weight", ".bias")) or known
            assert label.startswith(("v.", "mm.")), known
            is_matrix = part.ndim == 2 and "embd" not in label and part.shape[1] % 32 == 0
            add_tensor(writer, label, part, matrices if is_matrix else "F32")
    return finish(writer)


def _write_sizes(writer: GGUFWriter, vision: Config, image_size: int, count: int) -> None:
    writer.add_vision_image_size(image_size)
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_block_count(count)


def _write_keys(writer: GGUFWriter, kind: str, config: Config, processor: Config) -> int:
    vision, is_tiled = config["vision_config"], kind == "smolvlm"
    writer.add_clip_projector_type(PROJECTORS[kind])
    sizes = {name: np.max(vision[name]).item() for name in ("image_size", "patch_size")}
    _write_sizes(writer, sizes, sizes["image_size"], vision["num_hidden_layers"])
    writer.add_vision_embedding_length(vision["hidden_size"])
    writer.add_vision_feed_forward_length(vision["intermediate_size"])
    writer.add_vision_head_count(vision["num_attention_heads"])
    writer.add_vision_attention_layernorm_eps(vision["layer_norm_eps"])
    writer.add_vision_use_gelu(True)
    side = sizes["image_size"] // sizes["patch_size"]
    if kind == "internvl":
        writer.add_vision_projector_scale_factor(int(1 / config["downsample_ratio"]))
        writer.add_vision_preproc_max_tiles(processor["max_patches"])
    elif is_tiled:
        writer.add_vision_projector_scale_factor(config["scale_factor"])
        writer.add_vision_preproc_image_size(processor["size"]["longest_edge"])
    else:
        writer.add_vision_projector_scale_factor(side // int(config["mm_tokens_per_image"] ** 0.5))
    return int(vision["num_hidden_layers"])


def _write_qwen_keys(writer: GGUFWriter, kind: str, vision: Config, processor: Config) -> int:
    writer.add_clip_projector_type(QWEN[kind])
    side = int(vision.get("num_position_embeddings", 0) ** 0.5)
    size = side * vision["patch_size"] or 560  # the converter's for those without a table
    _write_sizes(writer, vision, size, vision["depth"])
    width = vision.get("embed_dim") or vision["hidden_size"]
    writer.add_vision_embedding_length(width)
    writer.add_vision_feed_forward_length(
        vision.get("intermediate_size") or int(width * vision["mlp_ratio"])
    )
    writer.add_vision_head_count(vision["num_heads"])
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_min_pixels(processor["size"]["shortest_edge"])
    writer.add_vision_max_pixels(processor["size"]["longest_edge"])
    if kind == "qwen2.5-vl":
        writer.add_vision_use_silu(True)
        writer.add_vision_n_wa_pattern(vision["fullatt_block_indexes"][0] + 1)
        writer.add_vision_window_size(vision["window_size"])
    if kind == "qwen3-vl":
        writer.add_vision_use_gelu(True)
        deep = vision["deepstack_visual_indexes"]
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
    """The frames of patches apart, and queries, keys and values too but in Qwen3-VL."""
    name = name.removeprefix("model.")
    end = name.rpartition(".")[2]
    merger = {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}
    deep = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}
    part = name.split(".")[-2]
    if name.endswith("patch_embed.proj.weight"):
        yield "v.patch_embd.weight", values[:, :, 0]
        yield "v.patch_embd.weight.1", values[:, :, 1]
    elif ".qkv." in name and kind != "qwen3-vl":
        for label, rows in zip("qkv", np.split(values, 3), strict=True):
            yield name.replace("qkv", label), rows
    elif "deepstack" in name:
        layer = vision["deepstack_visual_indexes"][int(name.split(".")[2])]
        yield f"v.deepstack.{layer}.{deep[part]}.{end}", values
    elif kind == "qwen3-vl" and ".merger." in name:
        yield f"{merger[part]}.{end}", values
    else:
        yield name, values
