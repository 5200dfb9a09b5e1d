"""Rounds a checkpoint's matrices to int8, int4 or float16, once, into a directory like the source.

    python -m mindspore_serving.llm.quantize SOURCE TARGET int8|int4|float16

int8 has one scale per output, int4 one per 128 inputs; embeddings, norms, biases and the routers
of experts stay as they are.  float16 is for processors without bfloat16, which widen it faster; of
bfloat16 it keeps every bit, but for numbers below 2**-17, which it rounds to multiples of 2**-24.
Round to nearest, numpy alone, a tensor at a time; no runtime.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.conversion import (
    check_is_new,
    new_directory,
    run_command,
    write_other_files,
)
from mindspore_serving.llm.checkpoint.packing import GROUP, is_router, pack
from mindspore_serving.llm.checkpoint.quantized.methods import OURS, quantization_of
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor, write_safetensors
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.models import load_definition
from mindspore_serving.llm.models.layouts import open_arranged
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.progress import progress

MODES = {"int8": 8, "int4": 4, "float16": 16}  # bits


def quantize(source: str | Path, target: str | Path, mode: str) -> None:
    """Write `source` to `target` with its matrices in `mode`, "int8", "int4" or "float16".

    `target` appears when it is complete.  An output matrix tied to the embedding becomes one of
    its own, so that it is quantised as well.  Raises StartError: an unknown mode, a source that is
    broken, unknown or quantised already, a target that exists, a number too large for float16.
    """
    source, target = Path(source), Path(target)
    if mode not in MODES:
        raise StartError(f"mode is {mode!r}, expected one of {', '.join(MODES)}")
    check_is_new(target)
    checkpoint = open_arranged(source)
    if quantization_of(checkpoint.config):
        raise StartError(f"{source} is quantised already; quantise the float checkpoint")
    spec, _ = load_definition(checkpoint.config)
    is_float = MODES[mode] == 16
    plan = _plan(checkpoint, spec, with_tables=is_float)
    config = _config(checkpoint.config, mode)
    if is_float:  # the new dtype, under each name that config.json has for it
        names = [name for name in ("dtype", "torch_dtype") if name in checkpoint.config]
        config = {**checkpoint.config, **dict.fromkeys(names or ["torch_dtype"], mode)}
    with new_directory(target) as directory:
        write_safetensors(directory, _tensors(checkpoint, plan, mode), {"format": OURS})
        write_other_files(source, directory, config)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit status."""
    return run_command(quantize, arguments, MODES)


def _plan(
    checkpoint: Checkpoint, spec: ModelSpec, *, with_tables: bool
) -> dict[str, tuple[str, bool]]:
    """Written name -> (read name, whether it is rounded); `with_tables` the embeddings as well,
    and a tied one stays tied."""
    plan, names, tied = {}, spec.form.names, spec.tied_embeddings
    # Rows are looked up, not multiplied -> what the output matrix is called beside them.
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


def _tensors(
    checkpoint: Checkpoint, plan: Mapping[str, tuple[str, bool]], mode: str
) -> Iterator[tuple[str, StoredTensor]]:
    bits = MODES[mode]
    for name, (read, is_rounded) in progress(list(plan.items()), f"to {mode}"):
        if not is_rounded:
            yield name, StoredTensor(*checkpoint.raw(read))
        elif bits == 16:
            halves = _halves(checkpoint, read)
            yield name, StoredTensor("F16", halves.shape, halves)
        else:
            packed = pack(checkpoint.f32(read), bits)
            values, scales = packed.values, packed.scales
            yield name, StoredTensor("I8" if packed.bits == 8 else "U8", values.shape, values)
            yield f"{name}.scale", StoredTensor("F16", scales.shape, scales)


def _halves(checkpoint: Checkpoint, name: str) -> npt.NDArray[np.uint16]:
    """The bits of float16.  Raises StartError if a number is too large for it."""
    floats = checkpoint.f32(name)
    with np.errstate(over="ignore"):
        halves = floats.astype(np.float16)
    if np.isinf(halves).any():
        raise StartError(
            f"tensor {name!r} has numbers up to {np.abs(floats).max():g}, but float16 ends at "
            "65504; take int8, or the checkpoint as it is"
        )
    return halves.view(np.uint16)


def _config(config: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """With `quantization_config`, so that other software refuses the integers by that name."""
    method = {"quant_method": OURS, "mode": mode}
    result = {**config, "tie_word_embeddings": False, "quantization_config": method}
    if mode == "int4":
        method["group_size"] = str(GROUP)
    if isinstance(config.get("text_config"), dict):
        result["text_config"] = {**config["text_config"], "tie_word_embeddings": False}
    return result


if __name__ == "__main__":
    sys.exit(main())
