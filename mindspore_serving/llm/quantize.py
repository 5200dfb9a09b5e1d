"""Quantisation of a checkpoint's matrices to int8, int4 or float16, into a new directory.

    python -m mindspore_serving.llm.quantize SOURCE TARGET int8|int4|float16

int8 has one scale per output, int4 one per 32, 64 or 128 inputs; embeddings, norms, biases, the
routers of experts and the vision tower stay as they are.  With a text to calibrate with, inputs of
matrices are scaled before (`calibration`).  float16 is for processors without bfloat16, which widen
it faster; of bfloat16 it keeps every bit, but for numbers below 2**-17, which it rounds to
multiples of 2**-24.  Needs only numpy, a tensor at a time; a runtime only to calibrate.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.calibration.calibrate import TOKENS, Calibration, calibrate
from mindspore_serving.llm.calibration.scaling import Floats, apply_scales, changed_tensors
from mindspore_serving.llm.checkpoint.conversion import (
    check_is_new,
    new_directory,
    run_command,
    write_other_files,
)
from mindspore_serving.llm.checkpoint.packing import GROUP, Packed, is_router, pack, unpack
from mindspore_serving.llm.checkpoint.quantized.methods import OURS, SCALED, quantization_of
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor, write_safetensors
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.models.layouts import tower_patterns
from mindspore_serving.llm.models.opening import open_definition, untied
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.progress import progress

MODES = {"int8": 8, "int4": 4, "float16": 16}  # bits
GROUPS = (32, 64, 128)
ZEROS = ("no", "yes", "auto")


@dataclass(frozen=True, slots=True)
class Rounding:
    """Rounding of int4 matrices.

    Args:
        group: inputs that share a scale, 32, 64 or 128; a matrix whose inputs are no multiple of it
            takes the next smaller one.
        zeros: "yes" is asymmetric, "no" symmetric, "auto" what has less error, by matrix.
    """

    group: int = GROUP
    zeros: str = "no"

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            raise StartError(
                f"group is {self.group}, expected one of {', '.join(map(str, GROUPS))}"
            )
        if self.zeros not in ZEROS:
            raise StartError(f"zeros is {self.zeros!r}, expected one of {', '.join(ZEROS)}")


DEFAULT = Rounding()


def quantize(
    source: str | Path,
    target: str | Path,
    mode: str,
    *,
    rounding: Rounding = DEFAULT,
    text: str | Path | None = None,
    num_tokens: int = TOKENS,
) -> Calibration | None:
    """Write `source` to `target` with its matrices in `mode`, "int8", "int4" or "float16".

    `target` appears when it is complete.  An output matrix tied to the embedding becomes a matrix
    of its own, so that it is quantised as well.  With a `text`, a file in UTF-8, the result of
    `calibrate` by `num_tokens` of it goes into the weights of int8 and int4, and is returned.

    Raises StartError for an unknown mode, a source that is broken, unknown or quantised already, a
    target that exists, a number too large for float16, and a text that cannot be calibrated with.
    """
    source, target = Path(source), Path(target)
    if mode not in MODES:
        raise StartError(f"mode is {mode!r}, expected one of {', '.join(MODES)}")
    is_float = MODES[mode] == 16
    if is_float and text is not None:
        raise StartError(f"mode is {mode!r}, but only int8 and int4 are calibrated: give no text")
    check_is_new(target)
    checkpoint, spec, _ = open_definition(source)
    if quantization_of(checkpoint.config):
        raise StartError(f"{source} is quantised already; quantise the float checkpoint")
    plan = _plan(checkpoint, spec, with_tables=is_float)
    calibration = None
    if text is not None:
        rounded = {read for read, is_rounded in plan.values() if is_rounded}
        calibration = calibrate(
            source, checkpoint, Path(text), num_tokens,
            lambda name: partial(_packed, mode, rounding) if name in rounded else None,
        )  # fmt: skip
    config = _config(checkpoint.config, mode, rounding, is_scaled=calibration is not None)
    if is_float:  # set the new dtype under each name that config.json has for it
        names = [name for name in ("dtype", "torch_dtype") if name in checkpoint.config]
        config = {**checkpoint.config, **dict.fromkeys(names or ["torch_dtype"], mode)}
    tensors = _Tensors(checkpoint, mode, rounding, calibration)
    with new_directory(target) as directory:
        written = chain(tensors.of(plan), _of_tower(source, spec))
        write_safetensors(directory, written, {"format": OURS})
        write_other_files(source, directory, config)
    return calibration


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    return run_command(quantize, arguments, MODES)


def _plan(
    checkpoint: Checkpoint, spec: ModelSpec, *, with_tables: bool
) -> dict[str, tuple[str, bool]]:
    """Return written name -> (read name, whether it is rounded).

    `with_tables` the embeddings are rounded as well, and a tied one stays tied.
    """
    plan, names, tied = {}, spec.architecture.names, spec.tied_embeddings
    # Tables, whose rows are looked up and not multiplied -> the name of a tied output matrix.
    tables = {f"{names.embedding}.weight": f"{names.head}.weight", f"{names.positions}.weight": ""}
    norms = (f"{names.q_norm}.weight", f"{names.k_norm}.weight")
    for name in checkpoint.names():
        head = tables.get(name)
        is_matrix = len(checkpoint.shape(name)) == 2 and name.endswith(".weight")
        is_matrix = is_matrix and not name.endswith(norms)
        is_rounded = is_matrix and (head is None or with_tables) and not is_router(name)
        plan[name] = (name, is_rounded)
        if tied and head and not with_tables:
            plan[head] = (name, True)
    return plan


@dataclass(frozen=True, slots=True)
class _Tensors:
    """Tensors to write of `checkpoint`."""

    checkpoint: Checkpoint
    mode: str
    rounding: Rounding
    calibration: Calibration | None

    def of(self, plan: Mapping[str, tuple[str, bool]]) -> Iterator[tuple[str, StoredTensor]]:
        scaled = () if self.calibration is None else self.calibration.scaled
        changed = changed_tensors(scaled)
        for name, (read, is_rounded) in progress(list(plan.items()), f"to {self.mode}"):
            if not is_rounded and read in changed:
                array = apply_scales(scaled, read, self.checkpoint.f32(read))
                yield name, StoredTensor("F32", array.shape, array)
            elif not is_rounded:
                yield name, StoredTensor(*self.checkpoint.raw(read))
            elif MODES[self.mode] == 16:
                halves = _halves(self.checkpoint, read)
                yield name, StoredTensor("F16", halves.shape, halves)
            else:
                yield from self._of_matrix(
                    name, apply_scales(scaled, read, self.checkpoint.f32(read))
                )

    def _of_matrix(self, name: str, matrix: Floats) -> Iterator[tuple[str, StoredTensor]]:
        packed = _packed(self.mode, self.rounding, matrix)
        values, scales, zeros = packed.values, packed.scales, packed.zeros
        yield name, StoredTensor("I8" if packed.bits == 8 else "U8", values.shape, values)
        yield f"{name}.scale", StoredTensor("F16", scales.shape, scales)
        if zeros is not None:
            yield f"{name}.zero", StoredTensor("U8", zeros.shape, zeros)


def _of_tower(source: Path, spec: ModelSpec) -> Iterator[tuple[str, StoredTensor]]:
    """Iterate over the tensors of towers for images and sounds, which are not rounded."""
    patterns = tower_patterns(spec.architecture)
    if not patterns:
        return
    checkpoint = Checkpoint.open(source)
    for name in checkpoint.names():
        if any(row.has(name, checkpoint.shape(name)) for row in patterns):
            yield name, StoredTensor(*checkpoint.raw(name))


def _packed(mode: str, rounding: Rounding, matrix: Floats) -> Packed:
    kinds = {"yes": (True,), "no": (False,), "auto": (False, True)}[rounding.zeros]
    bits, group = MODES[mode], rounding.group
    if bits == 8 or len(kinds) == 1:
        return pack(matrix, bits, group, has_zeros=kinds[0])
    candidates = [pack(matrix, bits, group, has_zeros=has_zeros) for has_zeros in kinds]
    return min(candidates, key=lambda packed: float(np.square(unpack(packed) - matrix).sum()))


def _halves(checkpoint: Checkpoint, name: str) -> npt.NDArray[np.uint16]:
    """Return the bits of float16.  Raises StartError if a number is too large for it."""
    floats = checkpoint.f32(name)
    with np.errstate(over="ignore"):
        halves = floats.astype(np.float16)
    if np.isinf(halves).any():
        raise StartError(
            f"tensor {name!r} has numbers up to {np.abs(floats).max():g}, but float16 ends at "
            "65504; use int8, or the checkpoint as it is"
        )
    return halves.view(np.uint16)


def _config(
    config: Mapping[str, Any], mode: str, rounding: Rounding, *, is_scaled: bool
) -> dict[str, Any]:
    """Return `config` with `quantization_config`, so that other software refuses the integers."""
    method: dict[str, Any] = {"quant_method": OURS, "mode": mode, SCALED: is_scaled}
    if mode == "int4":
        method["group_size"] = rounding.group
    return {**untied(config), "quantization_config": method}


if __name__ == "__main__":
    sys.exit(main())
