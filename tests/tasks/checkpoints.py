"""Tiny random checkpoints of tasks and their tokenizers, written by Hugging Face's libraries."""

import io
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = [
    "The quick brown fox jumps over the lazy dog in Warsaw.",
    "Anna flew from Paris to New York with Ben last Monday.",
    "A wonderful, funny and touching film! I loved every minute of it.",
    "x",
    "Terrible: the plot is dull, the actors are wooden. " * 3,
]
LONGEST = 200
SIZES = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": LONGEST,
}
ROBERTA = {
    **SIZES,
    "max_position_embeddings": LONGEST + 2,
    "pad_token_id": 1,
    "type_vocab_size": 1,
}
DISTILBERT = {
    "dim": 48,
    "hidden_dim": 64,
    "n_layers": 2,
    "n_heads": 4,
    "max_position_embeddings": LONGEST,
    "pad_token_id": 1,
}
MODERNBERT = {
    **SIZES,
    "num_hidden_layers": 4,
    "local_attention": 16,
    "cls_token_id": 0,
    "sep_token_id": 2,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
ELECTRA = {**SIZES, "embedding_size": 32}
# family -> (beginning of the class's name, its config, the kind of its tokenizer)
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("Bert", SIZES, "word_piece"),
    "distilbert": ("DistilBert", DISTILBERT, "word_piece"),
    "roberta": ("Roberta", ROBERTA, "byte_level"),
    "xlm-roberta": ("XLMRoberta", ROBERTA, "unigram"),
    "modernbert": ("ModernBert", MODERNBERT, "byte_level"),
    "mpnet": ("MPNet", {**SIZES, "max_position_embeddings": LONGEST + 2}, "byte_level"),
    "electra": ("Electra", ELECTRA, "word_piece"),  # not among our own encoders
}
ENTITIES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
SENTIMENTS = ["negative", "neutral", "positive"]


def build(
    directory: Path, family: str, head: str, *, labels: list[str] | None = None, **entries: Any
) -> Path:
    """Write the model and tokenizer of a family with a head such as "ForMaskedLM"."""
    prefix, sizes, kind = FAMILIES[family]
    tokenizer = make_tokenizer(kind)
    sizes = {**sizes, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    if labels is not None:
        entries["id2label"] = dict(enumerate(labels))
        entries["label2id"] = {label: index for index, label in enumerate(labels)}
    save(directory, getattr(transformers, prefix + head), {**sizes, **entries})
    tokenizer.save_pretrained(directory)
    return directory


def save(directory: Path, model_class: Any, sizes: dict[str, Any]) -> None:
    """Write a random model, whose outputs differ from one another."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(model_class.__name__.encode()))
        model = model_class(model_class.config_class(**sizes))
        for key, weight in model.named_parameters():
            if "norm" in key.lower():
                weight.data.normal_(1.0 if key.endswith("weight") else 0.0, 0.2)
            else:
                weight.data.normal_(0.0, 0.2 if weight.dim() == 1 else 0.3)
    model.save_pretrained(directory)


@cache
def make_tokenizer(kind: str) -> Any:
    """Trained on TEXTS; marks the beginning and end of a text and of a pair as its family does."""
    if kind == "word_piece":
        marks = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
        inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        inner.normalizer = normalizers.BertNormalizer(lowercase=False)
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer
        pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    else:
        marks = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
        pair = "<s> $A </s> </s> $B </s>"
        if kind == "byte_level":
            inner = Tokenizer(models.BPE())
            inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            trainer = trainers.BpeTrainer
        else:
            inner = Tokenizer(models.Unigram())
            inner.pre_tokenizer = pre_tokenizers.Metaspace()
            trainer = trainers.UnigramTrainer
    options = {"unk_token": "<unk>"} if kind == "unigram" else {}
    size = 120 if kind == "unigram" else 260
    inner.train_from_iterator(
        TEXTS,
        trainer(vocab_size=size, special_tokens=list(marks), show_progress=False, **options),
    )
    begin, padding, end, unknown, mask = marks
    inner.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=pair,
        special_tokens=[(mark, inner.token_to_id(mark)) for mark in (begin, end)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        cls_token=begin,
        sep_token=end,
        pad_token=padding,
        unk_token=unknown,
        mask_token=mask,
        model_max_length=LONGEST,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"]
        if kind == "word_piece"
        else ["input_ids", "attention_mask"],
    )


IMAGES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "vit": (
        "ViT",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 48,
            "image_size": 32,
            "patch_size": 8,
        },
        {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}},
    ),
    "resnet": (
        "ResNet",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
        {
            "image_processor_type": "ConvNextImageProcessor",
            "size": {"shortest_edge": 32},
            "crop_pct": 0.875,
        },
    ),
    "convnext": (
        "ConvNext",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
        {
            "image_processor_type": "ConvNextImageProcessor",
            "size": {"shortest_edge": 32},
            "crop_pct": 0.875,
        },
    ),
}
ANIMALS = ["cat", "dog", "fox", "owl", "ant", "bee", "eel"]


def build_images(directory: Path, family: str, **entries: Any) -> Path:
    """Write an image classifier and its processor."""
    import json

    prefix, sizes, processor = IMAGES[family]
    entries = {"id2label": dict(enumerate(ANIMALS)), **entries}
    save(directory, getattr(transformers, f"{prefix}ForImageClassification"), {**sizes, **entries})
    steps = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": 2,
        "rescale_factor": 1 / 255,
    }
    (directory / "preprocessor_config.json").write_text(json.dumps({**steps, **processor}))
    return directory


def picture(width: int = 50, height: int = 40, seed: int = 0) -> Image.Image:
    """Random colours in large areas."""
    random = np.random.default_rng(seed)
    few = random.integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(few).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The bytes of a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
