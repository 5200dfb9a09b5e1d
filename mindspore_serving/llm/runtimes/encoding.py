"""Opening and batch layout that the runtimes of encoders share.

Prompts are one after another, so that only attention computes padding: there they are the rows of a
rectangle.  Knows no runtime.

    tokens   a0 a1 a2 b0 c0 c1          token_of_cell   0 1 2     cell_of_token   0 1 2 3 6 7
    cells    a0 a1 a2 | b0 - - | c0 c1 -                3 3 3
                                                        4 5 5
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
from mindspore_serving.llm.models import encoder_architecture
from mindspore_serving.llm.models.decoder import encoder
from mindspore_serving.llm.models.layouts import open_converted
from mindspore_serving.llm.models.opening import check_tensors, warn_unknown_settings
from mindspore_serving.llm.models.spec import ModelSpec, from_config
from mindspore_serving.llm.models.tracing import read_names
from mindspore_serving.llm.step import Tokens

MASKED = np.float32(-1e9)  # added to a score: finite, so that nothing becomes NaN


@dataclass(frozen=True, slots=True)
class EncoderModel:
    """A checkpoint whose tensors have been checked against its config.json."""

    checkpoint: Checkpoint
    spec: ModelSpec
    max_model_len: int
    num_types: int  # token types; 1 for a family without them


def open_encoder_model(directory: str | Path, config: EngineConfig) -> EncoderModel:
    """Open an encoder; `config.max_model_len` overrides the prompt length that it recommends.

    Raises StartError: a broken or unknown checkpoint, a limit beyond its positions.
    """
    checkpoint = open_converted(directory)
    noted = TrackedSettings(checkpoint.config)
    spec = from_config(noted, architecture=encoder_architecture(checkpoint.config))
    warn_unknown_settings(checkpoint.directory, noted, spec.architecture.settings)
    read = read_names(spec, encoder, checkpoint.has)
    checkpoint = check_tensors(checkpoint, read, (*LEFTOVERS, HEADS))
    names, max_positions = spec.architecture.names, spec.max_position_embeddings
    for stem, rows in ((names.embedding, spec.vocab_size), (names.positions, max_positions)):
        name, expected = f"{stem}.weight", (rows, spec.hidden_size)
        shape = checkpoint.shape(name) if checkpoint.has(name) else expected
        if shape != expected:
            raise StartError(f"tensor {name!r} is {list(shape)}, expected {list(expected)}")
    if (config.max_model_len or 0) > max_positions:
        max_model_len = config.max_model_len
        raise StartError(
            f"max_model_len is {max_model_len}, but the model has {max_positions} positions"
        )
    longest = config.max_model_len or recommended_max_length(checkpoint.directory) or max_positions
    num_types = checkpoint.shape(f"{names.types}.weight")[0] if names.types else 1
    return EncoderModel(checkpoint, spec, min(longest, max_positions), num_types)


@dataclass(frozen=True, slots=True)
class EncoderLayout:
    """A batch as arrays: T tokens, with spare ones at their end, in B prompts of up to L tokens.

    `token_of_cell` [B, L] are tokens, with the last token of a prompt repeated where it is shorter;
    `cell_of_token` [T] are the cells of tokens in that rectangle, counted row by row.
    """

    token_ids: Tokens
    positions: Tokens
    types: Tokens
    token_of_cell: Tokens
    cell_of_token: Tokens
    is_token: npt.NDArray[np.bool_]  # [B, L]
    num_tokens: int

    def mask(self) -> npt.NDArray[np.float32]:
        """Return what is added to the scores, [B, 1, 1, L]."""
        added: Any = np.where(self.is_token, np.float32(0), MASKED)
        return np.asarray(added, np.float32)[:, None, None, :]


def lay_out_prompts(
    prompts: Sequence[Sequence[int]],
    num_rows: int | None = None,
    *,
    types: Sequence[Sequence[int]] | None = None,
) -> EncoderLayout:
    """Lay out a batch.

    `num_rows` is T if it is more than the prompts have: the spare tokens are 0.  `types` are those
    of the prompts' tokens, None for zeros.
    """
    counts = np.array([len(prompt) for prompt in prompts])
    num_tokens = int(counts.sum())
    longest = int(counts.max())
    starts = np.cumsum(counts) - counts
    columns = np.arange(longest)
    is_token = columns < counts[:, None]
    names = ("token_ids", "positions", "types", "back")
    token_ids, positions, token_types, cell_of_token = (
        np.zeros(num_rows or num_tokens, np.int32) for _ in names
    )
    token_ids[:num_tokens] = [token for prompt in prompts for token in prompt]
    if types is not None:
        token_types[:num_tokens] = [kind for prompt in types for kind in prompt]
    positions[:num_tokens] = (np.arange(num_tokens) - np.repeat(starts, counts)).astype(np.int32)
    cell_of_token[:num_tokens] = np.flatnonzero(is_token)
    token_of_cell = np.minimum(columns, counts[:, None] - 1) + starts[:, None]
    token_of_cell = token_of_cell.astype(np.int32)
    return EncoderLayout(
        token_ids, positions, token_types, token_of_cell, cell_of_token, is_token, num_tokens
    )
