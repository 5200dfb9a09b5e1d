"""Calibration: run a text through a model and choose the scales of its weights before rounding."""

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
    Quantizer,
    ScaledFold,
    best_scale,
)
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.models.tracing import LINEAR, trace
from mindspore_serving.llm.progress import progress
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

TOKENS = 4096  # of the text, unless the caller says otherwise
WINDOW = 512  # tokens of one sequence; windows do not attend to each other
MIN_TOKENS = 256  # of the text
NUM_SAMPLES = 256  # tokens whose inputs are kept, to compare products


@dataclass(frozen=True, slots=True)
class Calibration:
    """Chosen scales of a model.

    `scaled` are the folds with their factors, `unscaled` the names of the matrices that are rounded
    without a scale.
    """

    scaled: tuple[ScaledFold, ...]
    unscaled: tuple[str, ...]

    def summary(self) -> str:
        """Summarize in one line how many matrices were scaled and which were not."""
        count = sum(len(scaled.fold.readers) for scaled in self.scaled)
        ratio = np.mean([scaled.error_ratio for scaled in self.scaled]) if self.scaled else 1.0
        text = f"Scaled the inputs of {count} matrices: the error of their products is "
        text += f"{ratio:.2f} of the error without scales"
        return text + (
            f"; {len(self.unscaled)} matrices are not scaled: {_patterns(self.unscaled)}"
            * bool(self.unscaled)
        )


def calibrate(
    source: Path,
    checkpoint: Checkpoint,
    text: Path,
    num_tokens: int,
    quantizer_of: Callable[[str], Quantizer | None],
) -> Calibration:
    """Choose the scales of the model in `source` by running a text through it.

    Args:
        source: directory of the float model, with its tokenizer.
        checkpoint: its opened tensors.
        text: a file in UTF-8.
        num_tokens: about as many tokens of the text are used.
        quantizer_of: returns the function that rounds a matrix, None for a matrix that stays in
            float. Matrices that share their input with such a matrix are not scaled.

    Raises:
        StartError: there is no tokenizer, or the text cannot be read or is too short.
    """
    prompts = windows(Tokenizer.open(source).encode(_read(text), add_special=False), num_tokens)
    inputs = _inputs(source, prompts)
    spec, decoder = load_definition(checkpoint.config)
    calls = trace(spec, decoder, checkpoint.has)
    folds = [
        fold for fold in find_folds(calls, checkpoint.shape)
        if all(quantizer_of(name) is not None for name in fold.readers)
    ]  # fmt: skip
    scaled = []
    for fold in progress(folds, "scaling"):
        weights = [checkpoint.f32(name) for name in fold.readers]
        quantizer = quantizer_of(fold.readers[0])
        assert quantizer is not None
        scaled.append(best_scale(fold, inputs[fold.readers[0]], weights, quantizer))
    names = {name for fold in folds for name in fold.readers}
    matrices = (call.weights[0] for call in calls if call.operation == LINEAR)
    unscaled = tuple(name for name in matrices if name not in names and quantizer_of(name))
    return Calibration(tuple(scaled), unscaled)


def _patterns(names: Sequence[str]) -> str:
    """Return the distinct names with `*` for the numbers of layers."""
    return ", ".join(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in names))


def windows(tokens: Sequence[int], count: int) -> list[list[int]]:
    """Return about `count` of `tokens`, in windows of WINDOW tokens spread evenly over the text.

    A shorter text gives as many whole windows as it has, or all of its tokens as a single one.
    Raises StartError for a text under MIN_TOKENS tokens.
    """
    if len(tokens) < MIN_TOKENS:
        raise StartError(
            f"the calibration text has {len(tokens)} tokens, expected at least {MIN_TOKENS}; "
            f"a few thousand work well (the default is {TOKENS})"
        )
    size = min(WINDOW, len(tokens))
    number = min(max(1, count // size), len(tokens) // size)
    begins = np.linspace(0, len(tokens) - size, number).astype(int)
    return [list(tokens[begin : begin + size]) for begin in begins]


def _read(text: Path) -> str:
    try:
        return text.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"{text} cannot be read as UTF-8 text: {error}") from error


def _inputs(source: Path, prompts: Sequence[Sequence[int]]) -> dict[str, MatrixInputs]:
    """Return the inputs of each matrix, by its name; matrices that read one input share arrays."""
    from mindspore_serving.llm.runtimes.openvino.recording import record

    sums: dict[str, _InputStatistics] = {}
    shared: dict[str, list[str]] = {}
    for _, recorded in zip(progress(prompts, "calibrating"), record(source, prompts), strict=True):
        for names, array in recorded:
            shared[names[0]] = names
            sums.setdefault(names[0], _InputStatistics()).add(
                array, -(-NUM_SAMPLES // len(prompts))
            )
    return {name: inputs for first, names in shared.items()
            for inputs in [sums[first].inputs()] for name in names}  # fmt: skip


class _InputStatistics:
    """Running mean and samples of the rows that a matrix is multiplied with."""

    def __init__(self) -> None:
        self._count = 0
        self._abs_sum: Floats = np.zeros(1, np.float32)
        self._samples: list[Floats] = []

    def add(self, rows: Floats, num_samples: int) -> None:
        """Add `rows` [tokens, in] to the mean, and keep `num_samples` of them, evenly spaced."""
        indices = np.linspace(0, len(rows) - 1, min(num_samples, len(rows))).astype(int)
        self._samples.append(rows[indices])
        self._count += len(rows)
        self._abs_sum = self._abs_sum + np.abs(rows).sum(0)

    def inputs(self) -> MatrixInputs:
        return MatrixInputs(self._abs_sum / np.float32(self._count), np.concatenate(self._samples))
