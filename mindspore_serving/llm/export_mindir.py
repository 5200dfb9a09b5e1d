"""Export of a Llama-shaped checkpoint as MindIR files, with MindSpore on a CPU in float32.

    python -m mindspore_serving.llm.export_mindir SOURCE TARGET [--ranks N]

TARGET has prefill.mindir (any number of new tokens) and decode.mindir (one), both for any batch and
any past; argmax.mindir and topk.mindir, which choose tokens; config.json and the other files of
SOURCE but its weights.  A model over 1 GiB is written as prefill_graph.mindir with its weights in
prefill_variables/, and decode likewise.  The runtime "mindir" serves such a directory.

With `ranks` the layers are cut into as many stages, and the two graphs of each are in rank_0,
rank_1 and so on.  "mindir" serves that with the option `pipeline_parallel`.
"""

import sys
import uuid
from collections.abc import Sequence
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
from mindspore_serving.llm.models.opening import open_definition
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.parallel.part import cut_layers
from mindspore_serving.llm.progress import progress
from mindspore_serving.llm.runtimes.mindir.cut import RankMindIR, rank_directory
from mindspore_serving.llm.runtimes.mindir.export_weights import Matrices, check_exportable

TOP_K = 100  # tokens that topk.mindir keeps, fewer if the vocabulary is smaller


def export_mindir(source: str | Path, target: str | Path, ranks: int = 1) -> None:
    """Write the checkpoint `source` as MindIR to `target`, which appears when it is complete.

    Quantised weights become floats.  Raises StartError for a source that is broken or not shaped
    like Llama, different windows of layers, a target that exists, a missing MindSpore, and more
    ranks than layers.
    """
    source, target = Path(source), Path(target)
    check_is_new(target)
    checkpoint, spec, _ = open_definition(source)
    check_exportable(spec)
    config = {k: value for k, value in checkpoint.config.items() if k != "quantization_config"}
    with new_directory(target) as directory:
        _write_graphs(directory, checkpoint, spec, ranks)
        write_other_files(source, directory, config)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    counts = {"ranks": "number of ranks to cut the layers for (default: 1)"}
    return run_command(export_mindir, arguments, counts=counts)


def _write_graphs(directory: Path, checkpoint: Checkpoint, spec: ModelSpec, ranks: int) -> None:
    stages = _stages(directory, spec, ranks)
    try:
        from mindspore_serving.llm.runtimes.mindir import export_cell, library
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, "the export")) from error
    library.use_device(library.CPU)
    from mindspore_serving.llm.runtimes.mindir.graphs import decoder_inputs, dynamic

    f32 = library.mindspore.float32
    logits = dynamic((None, spec.vocab_size), f32)
    top_k = export_cell.TopKCell(min(TOP_K, spec.vocab_size))
    for folder, stage in progress(stages, "to MindIR"):
        folder.mkdir(exist_ok=True)
        decoder = export_cell.DecoderCell(stage, Matrices(checkpoint, spec))
        _write(folder / "prefill", decoder, decoder_inputs(stage, None))
        _write(folder / "decode", decoder, decoder_inputs(stage, 1))
    _write(directory / "argmax", export_cell.ArgmaxCell(), [logits])
    _write(directory / "topk", top_k, [logits, dynamic((None, 1), f32)])
    for written in directory.rglob("*"):  # MindSpore makes them readable by their owner only
        written.chmod(0o755 if written.is_dir() else 0o644)
    export = uuid.uuid4().hex
    for rank, (folder, _) in enumerate(stages if ranks > 1 else ()):
        RankMindIR(rank, ranks, export).write(folder)


def _stages(directory: Path, spec: ModelSpec, ranks: int) -> list[tuple[Path, ModelSpec]]:
    """Return the directory and the layers of each rank's graphs."""
    if not 1 <= ranks <= spec.num_layers:
        raise StartError(f"ranks is {ranks}, expected 1 to {spec.num_layers}, the number of layers")
    if ranks == 1:
        return [(directory, spec)]
    return [
        (rank_directory(directory, rank), cut_layers(spec, rank, ranks)) for rank in range(ranks)
    ]


def _write(path: Path, cell: Any, inputs: list[Any]) -> None:
    from mindspore_serving.llm.runtimes.mindir.library import mindspore

    try:
        mindspore.export(cell, *inputs, file_name=str(path), file_format="MINDIR")
    except Exception as error:  # MindSpore raises every kind
        raise StartError(f"{path.name}.mindir cannot be exported: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
