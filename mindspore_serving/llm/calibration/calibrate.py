"""Runs a text through a model, and finds what its weights are to be scaled by before rounding."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.calibration.folds import find_folds
from mindspore_serving.llm.calibration.scaling import (
    Floats,
    MatrixInputs,
    Round,
    Scaled,
    best_scale,
)
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.models.tracing import LINEAR, trace
from mindspore_serving.llm.progress import progress
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

TOKENS = 4096
WINDOW = 512  # tokens that are computed together, each window a text of its own
LEAST = 256  # tokens of a text
KEPT = 256  # tokens whose inputs are kept, to compare products


@dataclass(frozen=True, slots=True)
class Calibration:
    """`scaled` is what changes; `left` are matrices that are rounded as they are."""

    scaled: tuple[Scaled, ...]
    left: tuple[str, ...]

    def summary(self) -> str:
        """What was scaled and what was not, in a line."""
        count = sum(len(one.fold.readers) for one in self.scaled)
        gain = np.mean([one.gain for one in self.scaled]) if self.scaled else 1.0
        text = f"Scaled the inputs of {count} matrices: errors of their products are {gain:.2f} of "
        text += "what they were"
        return text + (
            f"; {len(self.left)} are as they were, {_kinds(self.left)}" * bool(self.left)
        )


def calibrate(
    source: Path,
    checkpoint: Checkpoint,
    text: Path,
    num_tokens: int,
    round_of: Callable[[str], Round | None],
) -> Calibration:
    """For the model in `source`, by `num_tokens` of `text`, a file in UTF-8.  `round_of` gives how
    a matrix is rounded; None for one that stays as it is, as does what it shares inputs with.

    Raises StartError: no tokenizer, a text that cannot be read or is too short.
    """
    prompts = windows(Tokenizer.open(source).encode(_read(text), add_special=False), num_tokens)
    inputs = _inputs(source, prompts)
    spec, decoder = load_definition(checkpoint.config)
    calls = trace(spec, decoder, checkpoint.has)
    folds = [
        fold for fold in find_folds(calls, checkpoint.shape)
        if all(round_of(name) is not None for name in fold.readers)
    ]  # fmt: skip
    scaled = []
    for fold in progress(folds, "scaling"):
        matrices = [checkpoint.f32(name) for name in fold.readers]
        rounding = round_of(fold.readers[0])
        assert rounding is not None
        scaled.append(best_scale(fold, inputs[fold.readers[0]], matrices, rounding))
    names = {name for fold in folds for name in fold.readers}
    matrices_left = (call.weights[0] for call in calls if call.operation == LINEAR)
    left = tuple(name for name in matrices_left if name not in names and round_of(name))
    return Calibration(tuple(scaled), left)


def _kinds(names: Sequence[str]) -> str:
    """Names without what is a number: of all layers."""
    return ", ".join(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in names))


def windows(tokens: Sequence[int], count: int) -> list[list[int]]:
    """About `count` of `tokens`, in pieces of WINDOW from places all over them; all if there are
    fewer.  Raises StartError if there are too few to say anything.
    """
    if len(tokens) < LEAST:
        raise StartError(
            f"the text to calibrate with has {len(tokens)} tokens, expected at least {LEAST}; some "
            f"thousands are good ({TOKENS} are used)"
        )
    size = min(WINDOW, len(tokens))
    number = min(max(1, count // size), len(tokens) // size)
    begins = np.linspace(0, len(tokens) - size, number).astype(int)
    return [list(tokens[begin : begin + size]) for begin in begins]


def _read(text: Path) -> str:
    try:
        return text.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"{text} cannot be read as a text in UTF-8: {error}") from error


def _inputs(source: Path, prompts: Sequence[Sequence[int]]) -> dict[str, MatrixInputs]:
    """By the names of matrices.  Those with the same input have the same arrays."""
    from mindspore_serving.llm.runtimes.openvino.recording import record

    sums: dict[str, _Sums] = {}
    shared: dict[str, list[str]] = {}
    for _, found in zip(progress(prompts, "calibrating"), record(source, prompts), strict=True):
        for names, array in found:
            shared[names[0]] = names
            sums.setdefault(names[0], _Sums()).add(array, -(-KEPT // len(prompts)))
    return {name: inputs for first, names in shared.items()
            for inputs in [sums[first].inputs()] for name in names}  # fmt: skip


class _Sums:
    """Of the rows that a matrix is multiplied with."""

    def __init__(self) -> None:
        self._count = 0
        self._size: Floats = np.zeros(1, np.float32)
        self._some: list[Floats] = []

    def add(self, rows: Floats, kept: int) -> None:
        """`kept` of them are kept."""
        places = np.linspace(0, len(rows) - 1, min(kept, len(rows))).astype(int)
        self._some.append(rows[places])
        self._count += len(rows)
        self._size = self._size + np.abs(rows).sum(0)

    def inputs(self) -> MatrixInputs:
        return MatrixInputs(self._size / np.float32(self._count), np.concatenate(self._some))
