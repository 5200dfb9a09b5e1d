"""Tiny models that take images as two GGUF files, as llama.cpp's converter writes them.

Names of tensors are translated by the gguf package's own table, and keys are written by its writer.
"""

import json
from pathlib import Path

import numpy as np
from gguf import MODEL_ARCH, GGUFWriter, VisionProjectorType, get_tensor_name_map
from safetensors.numpy import load_file, save_file

from tests.llm import seeing
from tests.llm.gguf_converted import write_converted
from tests.llm.gguf_files import add_tensor, finish

PARTS = ("vision_", "connector", "projector")
LANGUAGE = ("model.text_model.", "language_model.model.")
# kind -> (architecture of the language model, its class, text of the token of an image)
KINDS = {
    "smolvlm": ("llama", "LlamaForCausalLM", "<image>"),
    seeing.SEES_WHOLE: ("gemma3", "Gemma3ForCausalLM", "<image_soft_token>"),
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
    architecture, name, token = KINDS[kind]
    plain = directory / "plain"
    plain.mkdir()
    fields = {**config["text_config"], "architectures": [name]}
    (plain / "config.json").write_text(json.dumps(fields))
    save_file(tensors, plain / "model.safetensors")
    written = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = [text if number != seeing.IMAGE else token for text, number in written.items()]
    types = [3 if number < len(seeing.MARKS) else 1 for number in range(len(tokens))]
    vocabulary = {
        "tokens": tokens, "types": types, "pre": "gpt-2", "bos_token_id": 1, "eos_token_id": 2,
        "merges": ["a b"], "add_bos_token": False,
    }  # fmt: skip
    template = (source / "chat_template.jinja").read_text()
    path = directory / "model.gguf"
    write_converted(plain, architecture, path, vocabulary=vocabulary, template=template)
    write_tower(source, kind, directory / "mmproj-model.gguf", matrices=matrices)
    return path


def write_tower(source: Path, kind: str, path: Path, *, matrices: str = "F32") -> Path:
    """The vision tower of the checkpoint `source`."""
    config = json.loads((source / "config.json").read_text())
    processor = json.loads((source / "preprocessor_config.json").read_text())
    vision, is_tiled = config["vision_config"], kind == "smolvlm"
    writer = GGUFWriter(path, "clip")
    writer.add_clip_has_vision_encoder(True)
    kinds = VisionProjectorType
    writer.add_clip_projector_type(kinds.IDEFICS3 if is_tiled else kinds.GEMMA3)
    writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
    writer.add_vision_image_size(vision["image_size"])
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_embedding_length(vision["hidden_size"])
    writer.add_vision_feed_forward_length(vision["intermediate_size"])
    writer.add_vision_block_count(vision["num_hidden_layers"])
    writer.add_vision_head_count(vision["num_attention_heads"])
    writer.add_vision_attention_layernorm_eps(vision["layer_norm_eps"])
    writer.add_vision_use_gelu(True)
    writer.add_vision_image_mean(processor["image_mean"])
    writer.add_vision_image_std(processor["image_std"])
    side = vision["image_size"] // vision["patch_size"]
    if is_tiled:
        writer.add_vision_projector_scale_factor(config["scale_factor"])
        writer.add_vision_preproc_image_size(processor["size"]["longest_edge"])
    else:
        writer.add_vision_projector_scale_factor(side // int(config["mm_tokens_per_image"] ** 0.5))
    names = get_tensor_name_map(MODEL_ARCH.MMPROJ, vision["num_hidden_layers"])
    for name, values in load_file(source / "model.safetensors").items():
        if ".head." in name or not any(part in name for part in PARTS):
            continue
        name = name.replace("mm_input_projection_weight", "mm_input_projection.weight")
        if name.endswith("soft_emb_norm.weight"):
            values = values + np.float32(1)
        known = name if is_tiled else name.replace("vision_tower.", "vision_tower.vision_model.")
        label = names.get_name(known, (".weight", ".bias"))
        assert label is not None, known
        is_matrix = values.ndim == 2 and "embd" not in label and values.shape[1] % 32 == 0
        add_tensor(writer, label, values, matrices if is_matrix else "F32")
    return finish(writer)
