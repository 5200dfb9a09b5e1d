"""Tiny random models with towers for texts and images, and what transformers computes with them."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tests.tasks.checkpoints import picture, save

LABELS = ["cat", "dog", "an owl"]
TEXTS = ["a photo of a cat", "dog", "a photo of an owl and a dog", "cat"]
SIZES = [(50, 40), (32, 32), (97, 33), (8, 120), (33, 90)]  # of pictures
_TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
_STEPS = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
_SHAPE = {"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
# name -> (class, fields of the vision tower, the image processor)
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "clip": (
        "CLIP",
        {},
        {
            "image_processor_type": "CLIPImageProcessor",
            "size": {"shortest_edge": 32},
            "crop_size": {"height": 32, "width": 32},
            "do_center_crop": True,
            "do_convert_rgb": True,
        },
    ),
    "siglip": ("Siglip", {}, {"image_processor_type": "SiglipImageProcessor", **_SHAPE}),
    "siglip2": (
        "Siglip2",
        {"num_patches": 16},
        {
            "image_processor_type": "Siglip2ImageProcessor",
            "patch_size": 8,
            "max_num_patches": 16,
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        },
    ),
}


def build(directory: Path, family: str) -> Path:
    """Write a model with its tokenizer and its image processor."""
    name, vision, processor = FAMILIES[family]
    tokenizer = _tokenizer()
    text = {**_TEXT, "vocab_size": len(tokenizer), "eos_token_id": 2, "pad_token_id": 1}
    if family == "clip":
        text["eos_token_id"] = len(tokenizer) - 1  # a model of today finds it by its id
    else:
        text["projection_size"] = 32
    fields = {"text_config": text, "vision_config": {**_VISION, **vision}}
    sizes = {**fields, "projection_dim": 24} if family == "clip" else fields
    save(directory, getattr(transformers, f"{name}Model"), sizes)
    tokenizer.save_pretrained(directory)
    (directory / "preprocessor_config.json").write_text(json.dumps({**_STEPS, **processor}))
    return directory


def _tokenizer() -> Any:
    words = ["<unk>", "<pad>", "<s>", *sorted({word for text in TEXTS for word in text.split()})]
    words += ["this", "is", ".", "</s>"]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    end = len(words) - 1
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", end)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
    )


def pictures() -> list[Image.Image]:
    """Pictures of odd sizes."""
    return [picture(*size, seed=seed) for seed, size in enumerate(SIZES)]


def file_of(image: Image.Image) -> bytes:
    """Return a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


class Reference:
    """The library's own model, which computes one text or image at a time."""

    def __init__(self, directory: Path, family: str) -> None:
        self._model = transformers.AutoModel.from_pretrained(directory).eval()
        self._tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
        self._processor = transformers.AutoImageProcessor.from_pretrained(directory, backend="pil")
        self._padding = {"padding": False}
        if family != "clip":
            self._padding = {"padding": "max_length", "max_length": 16}

    def texts(self, texts: Sequence[str]) -> Any:
        """Return the vectors of texts, of length 1."""
        return np.stack([self._features("text", self._tokens(text)) for text in texts])

    def images(self, images: Sequence[Image.Image]) -> Any:
        """Return the vectors of images, of length 1."""
        inputs = [self._processor(image, return_tensors="pt") for image in images]
        return np.stack([self._features("image", each) for each in inputs])

    def logits(self, image: Image.Image, texts: Sequence[str]) -> Any:
        """Return a logit of each text."""
        inputs = self._processor(image, return_tensors="pt")
        rows = [self._tokens(text) for text in texts]
        with torch.no_grad():
            outputs = [self._model(**row, **inputs).logits_per_image[0, 0] for row in rows]
        return np.array([float(logit) for logit in outputs])

    def _tokens(self, text: str) -> dict[str, Any]:
        ids = self._tokenizer(text, return_tensors="pt", **self._padding)["input_ids"]
        return {"input_ids": ids}

    def _features(self, kind: str, inputs: dict[str, Any]) -> Any:
        with torch.no_grad():
            method = getattr(self._model, f"get_{kind}_features")
            vector = method(**inputs).pooler_output[0]
        return (vector / vector.norm()).numpy()


DETECTORS = {"owlvit": "OwlViT", "owlv2": "Owlv2"}


def build_detector(directory: Path, family: str) -> Path:
    """Write a zero-shot detector with its tokenizer and its image processor."""
    name = DETECTORS[family]
    tokenizer = _tokenizer()
    text = {**_TEXT, "vocab_size": len(tokenizer), "pad_token_id": 0}
    fields = {"text_config": text, "vision_config": _VISION, "projection_dim": 32}
    model_class = getattr(transformers, f"{name}ForObjectDetection")
    torch.manual_seed(len(name))
    model = model_class(model_class.config_class(**fields, architectures=[model_class.__name__]))
    for weight in model.parameters():
        weight.data.normal_(0.0, 0.2)
    model.config.save_pretrained(directory)
    tensors = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    tokenizer.save_pretrained(directory)
    processor = {
        "image_processor_type": f"{name}ImageProcessor",
        "size": {"height": 32, "width": 32},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    (directory / "preprocessor_config.json").write_text(json.dumps({**_STEPS, **processor}))
    return directory


GROUNDED = {"grounding-dino": "GroundingDino", "mm-grounding-dino": "MMGroundingDino"}
_IDS = {"[CLS]": 101, "[SEP]": 102, ".": 1012, "?": 1029}  # which the model knows by number
_SWIN = {
    "embed_dim": 12,
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 2, 2, 2],
    "window_size": 4,
    "image_size": 64,
    "out_indices": [2, 3, 4],
}
_SMALL_DINO = {
    "d_model": 64,  # two channels in each of 32 groups
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_queries": 12,
    "num_feature_levels": 4,
    "max_text_len": 24,
}


def build_grounded(directory: Path, family: str) -> Path:
    """Write a detector that reads all labels as one text."""
    name = GROUNDED[family]
    words = {f"[unused{number}]": number for number in range(1030)}
    for word, number in {**_IDS, "[UNK]": 100}.items():
        del words[f"[unused{number}]"]
        words[word] = number
    labels = sorted({word for label in LABELS for word in label.split()})
    words |= {word: 1030 + index for index, word in enumerate(labels)}
    inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [(word, _IDS[word]) for word in ("[CLS]", "[SEP]")]
    inner.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=special)
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(directory)
    text = {**_TEXT, "vocab_size": len(words), "max_position_embeddings": 32}
    swin, bert = transformers.SwinConfig(**_SWIN), transformers.BertConfig(**text)
    fields = {**_SMALL_DINO, "backbone_config": swin, "text_config": bert}
    save(directory, getattr(transformers, f"{name}ForObjectDetection"), fields)
    processor = {
        "image_processor_type": "GroundingDinoImageProcessor",
        "size": {"shortest_edge": 48, "longest_edge": 80},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    (directory / "preprocessor_config.json").write_text(json.dumps({**_STEPS, **processor}))
    return directory
