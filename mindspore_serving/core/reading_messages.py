"""Requests to models that read texts and write none, and their answers: vectors and scores.

Messages between a front end and the worker that has the model, as those of `llm_messages`.
"""

from typing import Literal, TypeAlias

import msgspec

Side: TypeAlias = Literal["", "right", "left"]
"""Where a text that is too long is cut; "" refuses it."""


class Embed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="embed"):
    """A vector for each prompt: text or token ids.

    Args:
        prompt_name: which of the model's instructions is put in front of texts; None for the one
            that its directory has as default, "" for none.
        truncate: which end of prompts that are too long is cut.
        scale: "model": as the model's directory says; "unit": of length 1; "none": as they come.
    """

    prompts: list[str | list[int]]
    prompt_name: str | None = None
    truncate: Side = ""
    scale: Literal["model", "unit", "none"] = "model"


class Score(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="score"):
    """What a classifier makes of each text, or of each pair of texts.

    Args:
        texts: the texts, or the second ones of the pairs: documents.
        queries: the first ones of the pairs: one for each text, or one for all; none for texts
            alone.
        instruction: what a document is judged by, of a model that reads instructions; "" for its
            own.
        truncate: which end of what is too long is cut, from the longer one of a pair.
    """

    texts: list[str]
    queries: list[str] = []
    instruction: str = ""
    truncate: Side = ""

    @property
    def num_characters(self) -> int:
        """Of all that the model reads, a query that is for all texts as often as it is read."""
        own = sum(map(len, self.texts)) + len(self.instruction) * len(self.texts)
        queries = sum(map(len, self.queries))
        return own + (queries * len(self.texts) if len(self.queries) == 1 else queries)


class DescribeTokenizer(msgspec.Struct, frozen=True, kw_only=True, tag="tokenizer"):
    """What tokenizer_config.json says."""


class TokenizerDescribed(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """`config` is a JSON object."""

    config: str


class Embedded(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """`vectors` are float32, little-endian, [number of prompts, `size`]."""

    vectors: bytes
    size: int
    num_prompt_tokens: tuple[int, ...]


class Scored(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Both are float32, little-endian, [number of texts, `size`], a column for each label.
    `scores` are what the model's configuration makes of the logits: probabilities, unless it is a
    regression.
    """

    logits: bytes
    scores: bytes
    size: int
    num_prompt_tokens: tuple[int, ...]
