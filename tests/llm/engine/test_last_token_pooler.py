"""Families that generate, used to embed and to rank by the last token, against transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from mindspore_serving.core.llm_messages import RequestRefused
from mindspore_serving.core.reading_messages import Embed, Score
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.loader import OpenedModel, open_model
from mindspore_serving.llm.processing.processor import Processor
from mindspore_serving.llm.processing.text_reader import (
    DEFAULT_INSTRUCTION,
    PROMPT_PREFIX,
    PROMPT_SUFFIX,
)
from tests.llm.encoders import describe_modules
from tests.tasks import checkpoints

SIZES = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 1,
    "tie_word_embeddings": True,
}
RUNTIMES = (
    "openvino",
    "torch",
    "native",
    pytest.param("mindspore", marks=[pytest.mark.long, pytest.mark.mindspore]),
)
EXACT = {"dtype": "f32", "kv_cache_dtype": "f32", "kv_cache_memory": 8 << 20}
LAST = {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}
QUERY, TEXTS = "a quick film", checkpoints.TEXTS


def build(directory: Path, kind: str, **more: Any) -> Any:
    """Write a random Qwen3 of that kind with a tokenizer; the model."""
    model_class = getattr(transformers, f"Qwen3{kind}")
    checkpoints.save(directory, model_class, {**SIZES, **more})
    checkpoints.make_tokenizer("byte_level").save_pretrained(directory)
    return model_class.from_pretrained(directory, dtype=torch.float32).eval()


def change(path: Path, **entries: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def read(opened: OpenedModel, request: Embed | Score) -> tuple[list[list[int]], np.ndarray]:
    """The tokens of a request, and what the engine makes of them."""
    processor = Processor(opened.tokenizer, opened.chat_template, opened.card())
    prompts = processor.read_texts(request).ids
    for place, ids in enumerate(prompts):
        opened.engine.add_embedding(str(place), ids)
    found: dict[str, Any] = {}
    while opened.engine.has_work:
        found.update(opened.engine.step())
    return prompts, np.stack([found[str(place)] for place in range(len(prompts))])


def encoded(opened: OpenedModel, text: str) -> list[int]:
    assert opened.tokenizer is not None
    return opened.tokenizer.encode(text, add_special=False)


@pytest.fixture
def opening() -> Any:
    """Opens models, which are closed at the end."""
    opened: list[OpenedModel] = []

    def open_one(directory: Path, runtime: str = "openvino", **options: Any) -> OpenedModel:
        opened.append(open_model(directory, runtime, EngineConfig(**{**EXACT, **options})))
        return opened[-1]

    yield open_one
    for one in opened:
        one.engine.close()


@torch.inference_mode()
def each(prompts: list[list[int]], compute: Callable[[torch.Tensor], torch.Tensor]) -> np.ndarray:
    return np.stack([compute(torch.tensor([ids])).numpy() for ids in prompts])


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_body_saved_alone_embeds_by_its_last_token(
    tmp_path: Path, runtime: str, opening: Any
) -> None:
    model = build(tmp_path, "Model")
    assert "embed_tokens.weight" in load_file(tmp_path / "model.safetensors")
    describe_modules(tmp_path, LAST, normalizes=True)
    described = {"prompts": {"query": "film: "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(described))
    opened = opening(tmp_path, runtime)
    card = opened.card()
    assert (card.can_generate, card.can_embed, card.pooling) == (False, True, "lasttoken")
    for name, before in ((None, "film: "), ("query", "film: "), ("", "")):
        prompts, found = read(opened, Embed(prompts=TEXTS, prompt_name=name))
        assert prompts[0] == opened.tokenizer.encode(before + TEXTS[0])
        wanted = each(prompts, lambda ids: model(ids).last_hidden_state[0, -1])
        assert np.abs(found - wanted / np.linalg.norm(wanted, axis=1, keepdims=True)).max() < 1e-4


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_classifier_with_a_single_label_ranks_by_the_last_token(
    tmp_path: Path, runtime: str, opening: Any
) -> None:
    model = build(tmp_path, "ForSequenceClassification", num_labels=1)
    opened = opening(tmp_path, runtime)
    assert opened.card().can_score
    prompts, found = read(opened, Score(texts=TEXTS, queries=[QUERY]))
    assert np.abs(found - each(prompts, lambda ids: model(ids).logits[0])).max() < 1e-4


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_model_that_generates_ranks_by_two_words(
    tmp_path: Path, runtime: str, is_tied: bool, opening: Any
) -> None:
    model = build(tmp_path, "ForCausalLM", tie_word_embeddings=is_tied)
    change(tmp_path / "config.json", classifier_from_token=["a", "b"])
    opened = opening(tmp_path, runtime, ranking=True)
    no, yes = (opened.tokenizer.token_id(word) for word in "ab")
    request = Score(texts=TEXTS, queries=[QUERY], instruction="Find films")
    prompts, found = read(opened, request)
    words = f"<Instruct>: Find films\n<Query>: {QUERY}\n<Document>: {TEXTS[0]}"
    assert prompts[0] == encoded(opened, PROMPT_PREFIX) + encoded(opened, words) + encoded(
        opened, PROMPT_SUFFIX
    )
    logits = each(prompts, lambda ids: model(ids).logits[0, -1])
    assert np.abs(found[:, 0] - (logits[:, yes] - logits[:, no])).max() < 1e-4


def test_texts_that_are_too_long_are_truncated_at_either_side(tmp_path: Path, opening: Any) -> None:
    build(tmp_path, "ForCausalLM")
    change(tmp_path / "config.json", classifier_from_token=["a", "b"])
    opened = opening(tmp_path, ranking=True, max_model_len=400)
    long = ["start " + "x" * 900 + " end"]
    with pytest.raises(RequestRefused, match="399"):
        read(opened, Score(texts=long, queries=[QUERY]))
    words = f"<Instruct>: {DEFAULT_INSTRUCTION}\n<Query>: {QUERY}\n<Document>: {long[0]}"
    whole, before, behind = (
        encoded(opened, text) for text in (words, PROMPT_PREFIX, PROMPT_SUFFIX)
    )
    room = 399 - len(before) - len(behind)
    for side, kept in (("right", whole[:room]), ("left", whole[-room:])):
        (ids,), _ = read(opened, Score(texts=long, queries=[QUERY], truncate=side))
        assert ids == before + kept + behind


def test_instructions_that_nothing_reads_are_refused(tmp_path: Path, opening: Any) -> None:
    build(tmp_path, "ForSequenceClassification", num_labels=1)
    opened = opening(tmp_path)
    with pytest.raises(InvalidInputs, match="reads none"):
        read(opened, Score(texts=TEXTS, queries=[QUERY], instruction="Find"))
    with pytest.raises(InvalidInputs, match="expected 1 or 5"):
        read(opened, Score(texts=TEXTS, queries=[QUERY] * 2))


def test_directories_that_cannot_be_right_are_refused(tmp_path: Path) -> None:
    config = EngineConfig(**EXACT)
    build(tmp_path, "Model")
    describe_modules(tmp_path, {"pooling_mode_mean_tokens": True}, normalizes=True)
    with pytest.raises(StartError, match="expected lasttoken"):
        open_model(tmp_path, "openvino", config)
    ranker = tmp_path / "ranker"
    build(ranker, "ForCausalLM")
    with pytest.raises(StartError, match="tokens \\['no', 'yes'\\]"):
        open_model(ranker, "openvino", EngineConfig(**EXACT, ranking=True))
    classifier = tmp_path / "classifier"
    build(classifier, "ForSequenceClassification", num_labels=1)
    path = classifier / "model.safetensors"
    tensors = load_file(path)
    tensors["score.weight"] = tensors["score.weight"][:, :-1].contiguous()
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(StartError, match="do not fit hidden_size 64"):
        open_model(classifier, "openvino", config)
