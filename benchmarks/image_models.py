"""Checkpoints of models that take images, with random weights, for `benchmarks.images`."""

from pathlib import Path
from typing import Any

from benchmarks.processes import HERE

PLACE = HERE / ".cache" / "images"
TOWERS = {
    "large": {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "image_size": 336, "patch_size": 14,
    },
    "small": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "image_size": 224, "patch_size": 16,
    },
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {  # family -> class, tower, text, processor, side of images
    "qwen2.5-vl": {  # 8 of 32 layers
        "prefix": "Qwen2_5_VL", "size": (616, 448), "processor": "Qwen2VL", "genai": True,
        "marks": ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>"],
        "vision": {
            "depth": 8, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
            "out_hidden_size": 576, "fullatt_block_indexes": [3, 7],
        },
        "text": {"model_type": "qwen2_5_vl_text", "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}},
    },
    "internvl": {  # 6 of 24 layers, an image is one tile
        "prefix": "InternVL", "size": (448, 448), "processor": "GotOcr2",
        "vision": {"num_hidden_layers": 6, "model_type": "internvl_vision"},
        "text": {"model_type": "qwen2"}, "settings": {"size": {"height": 448, "width": 448}},
    },
}  # fmt: skip
TEXT = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True,
    "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def build(name: str) -> Path:
    """Return the directory of the checkpoint, which is written if it is not there."""
    directory = PLACE / name
    if (directory / "model.safetensors").is_file():
        return directory
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    image, begin, end = OTHERS.get(name, {}).get("marks", ["<image>", "<img>", "</img>"])
    marks = ["<unk>", "<s>", "</s>", image, begin, end]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate([*marks, *letters])}
    coder = Tokenizer(models.BPE(vocabulary, []))
    coder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    coder.decoder = decoders.ByteLevel()
    coder.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=coder, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        pad_token="<unk>",
    )  # fmt: skip
    tokenizer.chat_template = (
        "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}"
        "{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}IMAGE\n"
        "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
    ).replace("IMAGE", begin + image + end if name in OTHERS else image)
    if name in OTHERS:
        return write_other(name, directory, tokenizer, len(vocabulary))
    vision = TOWERS[name]
    config = transformers.LlavaConfig(
        vision_config={"model_type": "clip_vision_model", "projection_dim": 768, **vision},
        text_config={**TEXT, "vocab_size": len(vocabulary)},
        image_token_index=vocabulary["<image>"],
        vision_feature_layer=-2,
    )
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(config)
    model.save_pretrained(directory)
    file = directory / "model.safetensors"
    inner = "vision_tower."  # as published checkpoints have them, which older libraries read
    tensors = load_file(file)
    renamed = {n.replace(inner, f"{inner}vision_model."): x for n, x in tensors.items()}
    save_file(renamed, file, {"format": "pt"})
    size = vision["image_size"]
    image_processor = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": size}, crop_size={"height": size, "width": size}
    )
    processor = transformers.LlavaProcessor(
        image_processor, tokenizer, patch_size=vision["patch_size"],
        vision_feature_select_strategy="default", num_additional_image_tokens=1,
    )  # fmt: skip
    processor.save_pretrained(directory)
    image_processor.save_pretrained(directory)
    (directory / "chat_template.jinja").write_text(tokenizer.chat_template)
    return directory


def write_other(name: str, directory: Path, tokenizer: Any, vocab_size: int) -> Path:
    """Write a checkpoint of one of OTHERS."""
    import torch
    import transformers

    row = OTHERS[name]
    config = getattr(transformers, f"{row['prefix']}Config")(
        vision_config=row["vision"],
        text_config={
            **TEXT,
            **row["text"],
            "vocab_size": vocab_size,
            "max_position_embeddings": 8192,
        },
        image_token_id=3,
        vision_start_token_id=4,
        vision_end_token_id=5,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{row['prefix']}ForConditionalGeneration")(config)
    model.save_pretrained(directory)
    kind = getattr(transformers, f"{row['processor']}ImageProcessorPil")
    kind(**row.get("settings", {})).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    (directory / "chat_template.jinja").write_text(tokenizer.chat_template)
    return directory
