"""Answers from a text: embed - search - rerank - generate, of which three are other servables."""

from functools import cache
from pathlib import Path

import faiss
import numpy as np

from mindspore_serving.server import register

PASSAGES = Path(__file__).with_name("passages.txt").read_text().splitlines()
NEAREST, BEST = 5, 2  # passages that are found by their vectors, and that the model reads
MAX_TOKENS = 64

embed = register.method("minilm.embed")
similarity = register.method("minilm.similarity")
generate = register.method("smollm2.generate", streams=True)


@cache
def index():
    """The passages by their vectors: embedded at the first question, in one call."""
    vectors = np.stack([vector for (vector,) in embed.call([[text] for text in PASSAGES])])
    built = faiss.IndexFlatIP(vectors.shape[1])
    built.add(vectors)
    return built


def search(vector):
    """A vector to the numbers of the nearest passages."""
    _, numbers = index().search(vector[None], NEAREST)
    return numbers[0]


def rerank(question, numbers):
    """The passages with the sentences nearest to the question, best first."""
    rows = [
        (number, sentence)
        for number in numbers.tolist()
        for sentence in PASSAGES[number].split(". ")
    ]
    scores = similarity.call([[question, sentence] for _, sentence in rows])
    best = {}
    for (number, _), (score,) in zip(rows, scores, strict=True):
        best[number] = max(float(score), best.get(number, -1.0))
    chosen = sorted(best, key=best.get, reverse=True)[:BEST]
    return "\n".join(PASSAGES[number] for number in chosen)


def to_prompt(question, sources):
    """The prompt in the form that SmolLM2 was trained with, its max_tokens and temperature."""
    text = f"Answer in one sentence, from this text alone:\n{sources}\n\nQuestion: {question}"
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", MAX_TOKENS, 0.0


@register.register_method(output_names=["text", "sources"])
def answer(question: str):
    """question: str.  text: the answer, which is streamed; sources: passages, one per line."""
    vector = register.add_stage(embed, question, outputs_count=1)
    numbers = register.add_stage(search, vector, outputs_count=1)
    sources = register.add_stage(rerank, question, numbers, outputs_count=1)
    request = register.add_stage(to_prompt, question, sources, outputs_count=3)
    text, _ = register.add_stage(generate, *request, outputs_count=2)
    return text, sources
