"""Sentence embeddings: text in, unit vector of 384 floats out, by tokenise - model - pool."""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from mindspore_serving.server import register

tokenizer = Tokenizer.from_file(str(Path(__file__).with_name("1") / "tokenizer.json"))
tokenizer.enable_truncation(max_length=256)
# Few different lengths: the server batches what is of one shape.
tokenizer.enable_padding(pad_to_multiple_of=16)

model = register.declare_model(model_file="minilm.onnx", model_format="ONNX")


def tokenise(text):
    """A text to token ids and mask, int64, padded to the next multiple of 16."""
    encoding = tokenizer.encode(text)
    return np.array(encoding.ids), np.array(encoding.attention_mask)


def pool(hidden, mask):
    """The mean over the tokens that are no padding, of length 1."""
    vector = mask.astype(np.float32) @ hidden
    return vector / np.linalg.norm(vector)


def cosine(left, right):
    return float(left @ right)


def add_embedding(text):
    ids, mask = register.add_stage(tokenise, text, outputs_count=2)
    hidden = register.add_stage(model, ids, mask, outputs_count=1)
    return register.add_stage(pool, hidden, mask, outputs_count=1)


@register.register_method(output_names=["embedding"])
def embed(text: str):
    """text: str, of which the first 256 tokens count.  embedding: float32 (384,)."""
    return add_embedding(text)


@register.register_method(output_names=["similarity"])
def similarity(left: str, right: str):
    """left, right: str.  similarity: float64 in -1..1, 1 for the same meaning."""
    return register.add_stage(cosine, add_embedding(left), add_embedding(right), outputs_count=1)
