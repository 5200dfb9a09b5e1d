"""Requests to models that read texts and generate none, and their answers: vectors, scores.

Messages between a front end and the worker that has the model, like those of `llm_messages`.
"""

from typing import Any, Literal, TypeAlias

import msgspec

Side: TypeAlias = Literal["", "right", "left"]
"""End at which a text that is too long is cut; "" refuses it."""


class EmbeddedImage(msgspec.Struct, frozen=True, array_like=True):
    """An image to embed in the place `index` of the prompts.

    `field` is the field of the client's request that holds its `url`, which may be a data URI.
    """

    index: int
    field: str
    url: str


class Embed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="embed"):
    """Request for a vector of each prompt: text, token ids or an image.

    Args:
        messages: a conversation to embed in place of prompts, as in `Generate`.
        images: in the order of their places, where `prompts` has "".
        prompt_name: which of the model's instructions precedes texts; None for its default, "" for
            none.
        truncate: the end at which prompts that are too long are cut.
        scale: "model": as the model's directory says; "unit": to length 1; "none": unscaled.
    """

    prompts: list[str | list[int]]
    images: list[EmbeddedImage] = []
    messages: list[dict[str, Any]] = []
    prompt_name: str | None = None
    truncate: Side = ""
    scale: Literal["model", "unit", "none"] = "model"

    @property
    def count(self) -> int:
        """Number of vectors."""
        return len(self.prompts) or bool(self.messages)


class Score(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="score"):
    """Request for the output of a classifier for each text, or for each pair of texts.

    Args:
        texts: the texts, or the second texts of pairs: documents.
        queries: the first texts of pairs: one per text, or one for all; none for single texts.
        instruction: the criterion for documents, if the model reads instructions; "" for its
            default.
        truncate: the end at which the longer text of a pair is cut if it is too long.
    """

    texts: list[str]
    queries: list[str] = []
    instruction: str = ""
    truncate: Side = ""

    @property
    def num_characters(self) -> int:
        """Number of characters that the model reads; a query counts each time it is read."""
        in_texts = sum(map(len, self.texts)) + len(self.instruction) * len(self.texts)
        queries = sum(map(len, self.queries))
        return in_texts + (queries * len(self.texts) if len(self.queries) == 1 else queries)


class DescribeTokenizer(msgspec.Struct, frozen=True, kw_only=True, tag="tokenizer"):
    """Request for the content of tokenizer_config.json."""


class TokenizerDescribed(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Content of tokenizer_config.json; `config` is a JSON object."""

    config: str


class Embedded(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Vectors as float32, little-endian, [number of prompts, `size`]."""

    vectors: bytes
    size: int
    num_prompt_tokens: tuple[int, ...]


class Scored(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Logits and scores as float32, little-endian, [number of texts, `size`]; columns are labels.

    The model's configuration tells how scores are computed from logits: they are probabilities,
    unless it is a regression.
    """

    logits: bytes
    scores: bytes
    size: int
    num_prompt_tokens: tuple[int, ...]
