"""Tiny random models with an encoder and a decoder, made by transformers, with a tokenizer."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

LETTERS = "abcdefghijklmnopqrstuvwxyz.,!?'"
SPECIAL = ["<pad>", "</s>", "<s>", "<unk>", "en_XX", "fr_XX"]
PAD, END, BEGIN, UNKNOWN, ENGLISH, FRENCH = range(len(SPECIAL))
VOCAB = len(SPECIAL) + 1 + len(LETTERS)
LONGEST = 160
_IDS = {
    "vocab_size": VOCAB,
    "pad_token_id": PAD,
    "eos_token_id": END,
    "bos_token_id": BEGIN,
    "decoder_start_token_id": END,
    "forced_eos_token_id": None,
}
BART = {
    **_IDS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": LONGEST,
    "init_std": 0.3,
}
T5 = {
    **_IDS,
    "decoder_start_token_id": PAD,
    "d_model": 32,
    "d_kv": 6,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 20,
    "n_positions": LONGEST,
}
GATED = {**T5, "feed_forward_proj": "gated-gelu"}
# name -> (class of transformers, its config)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("BartForConditionalGeneration", {**BART, "forced_bos_token_id": BEGIN}),
    "mbart": (
        "MBartForConditionalGeneration",
        {**BART, "scale_embedding": True, "forced_bos_token_id": FRENCH},
    ),
    "m2m100": (
        "M2M100ForConditionalGeneration",
        {**BART, "scale_embedding": True, "bad_words_ids": [[PAD]]},
    ),
    "marian": (
        "MarianMTModel",
        {
            **BART,
            "scale_embedding": True,
            "activation_function": "swish",
            "decoder_start_token_id": PAD,
            "bad_words_ids": [[PAD]],
        },
    ),
    "pegasus": ("PegasusForConditionalGeneration", {**BART, "activation_function": "relu"}),
    "t5": ("T5ForConditionalGeneration", T5),
    "flan-t5": ("T5ForConditionalGeneration", {**GATED, "tie_word_embeddings": False}),
    "mt5": ("MT5ForConditionalGeneration", GATED),
    "umt5": ("UMT5ForConditionalGeneration", GATED),
}


def build(name: str, directory: Path) -> Path:
    """Write a checkpoint with its tokenizer below `directory`, and return its own directory."""
    kind, fields = FAMILIES[name]
    model_class = getattr(transformers, kind)
    fields = dict(fields)
    bad_words = fields.pop("bad_words_ids", None)
    torch.manual_seed(3)
    model = model_class(model_class.config_class(**fields)).eval()
    with torch.no_grad():
        for key, weights in model.named_parameters():
            if weights.ndim == 1:
                weights.add_(torch.randn_like(weights) * 0.1)
            elif "relative_attention_bias" in key:
                weights.copy_(torch.randn_like(weights))
            elif name.endswith("t5"):
                weights.copy_(torch.randn_like(weights) * 0.1)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias))
    model.generation_config.bad_words_ids = bad_words
    target = directory / name
    model.save_pretrained(target)
    write_tokenizer(target)
    return target


def write_tokenizer(directory: Path) -> None:
    """Write a tokenizer of letters, as SentencePiece's, which ends each text with `</s>`."""
    pieces = [(piece, 0.0) for piece in SPECIAL] + [(piece, -2.0) for piece in "▁" + LETTERS]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", END)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
