"""Writes a Llama-shaped checkpoint as MindIR files, with MindSpore on a CPU in float32.

    python -m mindspore_serving.llm.export_mindir SOURCE TARGET

TARGET has prefill.mindir (any number of new tokens) and decode.mindir (one), both over any batch
and any past; argmax.mindir and topk.mindir, which choose tokens; config.json and what else SOURCE
has beside its weights.  A model over 1 GiB is written as prefill_graph.mindir with its weights in
prefill_variables/, and decode likewise.  The runtime "mindir" serves such a directory.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mindspore_serving import extras
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.conversion import (
    check_is_new,
    new_directory,
    run_command,
    write_other_files,
)
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.models.layouts import open_arranged
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.progress import progress
from mindspore_serving.llm.runtimes.mindir.export_weights import Matrices, exportable

TOP_K = 100  # tokens that topk.mindir keeps, fewer if the vocabulary is smaller


def export_mindir(source: str | Path, target: str | Path) -> None:
    """Write the checkpoint `source` as MindIR to `target`, which appears when it is complete.

    Quantised weights become floats.  Raises StartError: a source that is broken or not shaped like
    Llama, different windows of layers, a target that exists, no MindSpore.
    """
    source, target = Path(source), Path(target)
    check_is_new(target)
    checkpoint = open_arranged(source)
    spec = exportable(checkpoint.config)
    config = {k: value for k, value in checkpoint.config.items() if k != "quantization_config"}
    with new_directory(target) as directory:
        _write_graphs(directory, checkpoint, spec)
        write_other_files(source, directory, config)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit status."""
    return run_command(export_mindir, arguments)


def _write_graphs(directory: Path, checkpoint: Checkpoint, spec: ModelSpec) -> None:
    try:
        from mindspore_serving.llm.runtimes.mindir import export_cell, library
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, "the export")) from error
    library.use_device(library.CPU)
    from mindspore_serving.llm.runtimes.mindir.graphs import decoder_inputs, dynamic

    f32 = library.mindspore.float32
    logits = dynamic((None, spec.vocab_size), f32)
    model = export_cell.DecoderCell(spec, Matrices(checkpoint, spec))
    top_k = export_cell.TopKCell(min(TOP_K, spec.vocab_size))
    graphs: dict[str, Callable[[], tuple[Any, list[Any]]]] = {
        "prefill": lambda: (model, decoder_inputs(spec, None)),
        "decode": lambda: (model, decoder_inputs(spec, 1)),
        "argmax": lambda: (export_cell.ArgmaxCell(), [logits]),
        "topk": lambda: (top_k, [logits, dynamic((None, 1), f32)]),
    }
    for name in progress(list(graphs), "to MindIR"):
        cell, inputs = graphs[name]()
        path = str(directory / name)
        try:
            library.mindspore.export(cell, *inputs, file_name=path, file_format="MINDIR")
        except Exception as error:  # MindSpore raises every kind
            raise StartError(f"{name} of {spec.architecture} was not exported: {error}") from error
    for written in directory.rglob("*"):  # MindSpore leaves them readable by their owner alone
        written.chmod(0o755 if written.is_dir() else 0o644)


if __name__ == "__main__":
    sys.exit(main())
