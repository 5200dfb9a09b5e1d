"""What the runtimes of encoders share: opening a directory, and laying out a batch.

Prompts are one after another, so that only attention computes padding: there they are the rows of a
rectangle.  Knows no runtime.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.leftovers import HEADS, LEFTOVERS
from mindspore_serving.llm.checkpoint.pooling import recommended_max_length
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.descriptions.settings import TrackedSettings
from mindspore_serving.llm.models import encoder_form
from mindspore_serving.llm.models.decoder import encoder
from mindspore_serving.llm.models.layouts import open_arranged
from mindspore_serving.llm.models.opening import check_tensors, tell_unknown
from mindspore_serving.llm.models.spec import ModelSpec, from_config
from mindspore_serving.llm.models.tracing import read_names
from mindspore_serving.llm.step import Tokens

MASKED = np.float32(-1e9)  # added to a score: finite, so that nothing becomes NaN


@dataclass(frozen=True, slots=True)
class EncoderModel:
    """A checkpoint, checked to fit what it says."""

    checkpoint: Checkpoint
    spec: ModelSpec
    max_model_len: int
    num_types: int  # of tokens; 1 for a family without


def open_encoder_model(directory: str | Path, config: EngineConfig) -> EncoderModel:
    """`config.max_model_len` overrides the length that the directory recommends for prompts.

    Raises StartError: a broken or unknown checkpoint, a limit beyond its positions.
    """
    checkpoint = open_arranged(directory)
    noted = TrackedSettings(checkpoint.config)
    spec = from_config(noted, form=encoder_form(checkpoint.config))
    tell_unknown(checkpoint.directory, noted, spec.form.settings)
    read = read_names(spec, encoder, checkpoint.has)
    checkpoint = check_tensors(checkpoint, read, (*LEFTOVERS, HEADS))
    names, most = spec.form.names, spec.max_position_embeddings
    for stem, rows in ((names.embedding, spec.vocab_size), (names.positions, most)):
        name, wanted = f"{stem}.weight", (rows, spec.hidden_size)
        found = checkpoint.shape(name) if checkpoint.has(name) else wanted
        if found != wanted:
            raise StartError(f"tensor {name!r} is {list(found)}, expected {list(wanted)}")
    if (config.max_model_len or 0) > most:
        given = config.max_model_len
        raise StartError(f"max_model_len is {given}, but the model has {most} positions")
    good = config.max_model_len or recommended_max_length(checkpoint.directory) or most
    num_types = checkpoint.shape(f"{names.types}.weight")[0] if names.types else 1
    return EncoderModel(checkpoint, spec, min(good, most), num_types)


@dataclass(frozen=True, slots=True)
class EncoderLayout:
    """A batch as arrays.  T tokens with the spare ones at their end, in B prompts of up to L.

    `places` [B, L] are tokens, the last one of a prompt again where it is shorter; `back` [T] are
    the places of tokens in that rectangle read row by row.
    """

    token_ids: Tokens
    positions: Tokens
    types: Tokens
    places: Tokens
    back: Tokens
    is_token: npt.NDArray[np.bool_]  # [B, L]
    num_tokens: int

    def mask(self) -> npt.NDArray[np.float32]:
        """What is added to the scores, [B, 1, 1, L]."""
        added: Any = np.where(self.is_token, np.float32(0), MASKED)
        return np.asarray(added, np.float32)[:, None, None, :]


def lay_out_prompts(
    prompts: Sequence[Sequence[int]],
    num_rows: int | None = None,
    *,
    types: Sequence[Sequence[int]] | None = None,
) -> EncoderLayout:
    """`num_rows` is T if it is more than the prompts have: the spare tokens are 0.  `types` are
    those of the prompts' tokens, None for zeros.
    """
    counts = np.array([len(prompt) for prompt in prompts])
    num_tokens = int(counts.sum())
    longest = int(counts.max())
    starts = np.cumsum(counts) - counts
    columns = np.arange(longest)
    is_token = columns < counts[:, None]
    names = ("token_ids", "positions", "types", "back")
    token_ids, positions, kinds, back = (np.zeros(num_rows or num_tokens, np.int32) for _ in names)
    token_ids[:num_tokens] = [token for prompt in prompts for token in prompt]
    if types is not None:
        kinds[:num_tokens] = [kind for prompt in types for kind in prompt]
    positions[:num_tokens] = (np.arange(num_tokens) - np.repeat(starts, counts)).astype(np.int32)
    back[:num_tokens] = np.flatnonzero(is_token)
    places = np.minimum(columns, counts[:, None] - 1) + starts[:, None]
    places = places.astype(np.int32)
    return EncoderLayout(token_ids, positions, kinds, places, back, is_token, num_tokens)
